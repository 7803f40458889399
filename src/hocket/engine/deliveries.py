"""From the policy's answer to the actions that lanes execute. Sends nothing: the engine does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hocket.core.data import Array, Chunk, Chunks
from hocket.core.events import BatchInferred
from hocket.engine.batches import Flight
from hocket.engine.chunk_rules import SharedRule
from hocket.engine.inference import Answered
from hocket.engine.lanes import Lane
from hocket.errors import HocketError


class Delivery(NamedTuple):
    """What is to be done with an answer."""

    numbers: Sequence[int]
    """Lanes that get actions."""
    lanes: Sequence[Lane]
    actions: Sequence[Array] | Array
    """Of each of them `[k, A]`, or all in one array `[B, k, A]`."""
    sources: Sequence[str]
    """Who made these."""
    delivered: Sequence[Chunk | None]
    """For every row of the batch; None where nothing is sent."""
    failed: Sequence[tuple[int, Lane, Exception]]
    """Lanes whose attempts are lost by an error of the policy."""


def deliver(
    answer: Answered, flight: Flight, running: Mapping[int, Lane], rule: SharedRule | None
) -> Delivery:
    """What goes where; `running` is what lanes do now, and `rule` serves all of them, if any does.
    Attempts that ended meanwhile get nothing."""
    chunks, numbers, lanes = answer.chunks, flight.numbers, flight.lanes
    if rule is None or not isinstance(chunks, Chunks) or [*map(running.get, numbers)] != lanes:
        return _deliver_singly(answer, flight, running)
    try:
        actions = rule.take_all(chunks.actions)
    except HocketError:  # which each row is told of
        return _deliver_singly(answer, flight, running)
    return Delivery(numbers, lanes, actions, [chunks.source] * len(lanes), chunks, ())


def _deliver_singly(answer: Answered, flight: Flight, running: Mapping[int, Lane]) -> Delivery:
    sent: list[tuple[int, Lane, Array, str]] = []
    failed: list[tuple[int, Lane, Exception]] = []
    delivered: list[Chunk | None] = [None] * len(flight.lanes)
    for i, (number, lane) in enumerate(zip(flight.numbers, flight.lanes, strict=True)):
        if running.get(number) is not lane:
            continue
        chunk = delivered[i] = answer.chunks[i]
        try:
            if chunk is None:
                raise answer.errors[i] or HocketError("The policy gave no answer.")
            actions = lane.rule.take(chunk.actions, lane.steps)
            sent.append((number, lane, actions, chunk.source))
        except Exception as exc:  # noqa: BLE001 - an error of a user's policy costs its row
            failed.append((number, lane, exc))
    if not sent:
        return Delivery((), (), (), (), delivered, failed)
    numbers, lanes, moves, sources = zip(*sent, strict=True)
    return Delivery(numbers, lanes, moves, sources, delivered, failed)


def inferred(
    answer: Answered, flight: Flight, delivery: Delivery, *, now: float, start: float
) -> BatchInferred:
    """What readers are told of it; `start` is when the run began by the policy's clock."""
    return BatchInferred(
        time=now,
        batch=answer.job.number,
        began=answer.began - start,
        ended=answer.ended - start,
        lanes=flight.numbers,
        trials=[lane.trial for lane in flight.lanes],
        attempts=[lane.attempt for lane in flight.lanes],
        chunks=flight.rows.chunks,
        delivered=delivery.delivered,
        ready=flight.ready_at,
        size=max(answer.job.pad_to, len(flight.numbers)),
        observations=answer.observations,
    )
