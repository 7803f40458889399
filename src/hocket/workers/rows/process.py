"""A batched simulator in a worker process; what rows see is written where the parent reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Observation, Signature
from hocket.core.wire import END_OBSERVED, Executed, Message, Ready
from hocket.workers.env.host import Port
from hocket.workers.layout import Layout
from hocket.workers.rows.host import RowsHost
from hocket.workers.rows.sim import on_host
from hocket.workers.shm import Control

_WORK_S = 1.0
"""Seconds of steps before the stream is looked at again even if nobody writes. Chosen by hand: a
message ends the work at once."""


class RowsProcess:
    """Drives a RowsHost in a process of its own.

    Rows of one signature share a block of memory; a lane that changes its signature, because its
    next trial runs in another simulator, is told where its arrays lie from then on.
    """

    def __init__(self, spec: WorkerSpec, control: Control, port: Port, index: int) -> None:
        self._port = port
        self._lanes = spec.lanes
        self._host = RowsHost(spec, control, self._post, index)
        self._blocks: dict[Signature, tuple[int, Layout, Any]] = {}
        self._told: list[Signature | None] = [None] * spec.lanes
        """The signature of the layout that the parent has of each lane."""

    def perform(self, message: Message) -> None:
        """Do what a message asks, and post the answers."""
        self._host.perform(message)

    def due_s(self) -> float | None:
        """Seconds until `work` has something to do; None until a message comes."""
        return self._host.due_s()

    def work(self, is_called: Callable[[], bool]) -> None:
        """Make steps of the rows that have an action, until there is something to tell or someone
        calls."""
        self._host.work(_WORK_S, is_called, awaits_all=False)

    def close(self) -> None:
        """Close the simulators and forget the attempts that are running."""
        self._host.close()

    def _post(self, message: Message) -> None:
        if isinstance(message, Ready):
            for part in self._by_signature(message):
                self._port.post(part)
            return
        if isinstance(message, Executed):
            seen = [not end or bool(end & END_OBSERVED) for end in message.ends]
            for lane, is_seen in zip(message.lanes, seen, strict=True):
                if is_seen:
                    self._lay(lane)
            if any(seen):
                message = message._replace(arrays=self._arrays(message.lanes))
        self._port.post(message)

    def _by_signature(self, message: Ready) -> list[Ready]:
        """The message, or one for each signature among its lanes."""
        order = sorted(
            range(len(message.lanes)), key=lambda i: repr(self._host.signature(message.lanes[i]))
        )
        parts = []
        for signature, group in groupby(
            order, key=lambda i: self._host.signature(message.lanes[i])
        ):
            indices = list(group)
            lanes = [message.lanes[i] for i in indices]
            number, layout, _ = self._block(signature, lanes[0])
            is_new = any(self._told[lane] != signature for lane in lanes)
            for lane in lanes:
                self._told[lane] = signature
                self._lay(lane)
            parts.append(
                message._replace(
                    lanes=lanes,
                    attempts=[message.attempts[i] for i in indices],
                    prompts=[message.prompts[i] for i in indices],
                    layout=layout.entries if is_new else None,
                    block=number,
                    arrays=self._arrays(lanes),
                )
            )
        return parts

    def _block(self, signature: Signature, lane: int) -> tuple[int, Layout, Any]:
        if signature not in self._blocks:
            layout = Layout.of(self._host.arrays(lane), 1)
            memory = self._port.allocate(layout.stride * self._lanes)
            self._blocks[signature] = (self._port.block, layout, memory)
        return self._blocks[signature]

    def _lay(self, lane: int) -> None:
        """Write what the lane sees now where the parent reads it."""
        signature = self._told[lane]
        assert signature is not None  # told with the lane's Ready
        _, layout, memory = self._blocks[signature]
        views: Observation = layout.views(memory, lane)
        for key, array in self._host.arrays(lane).items():
            np.copyto(views[key], on_host(array))

    def _arrays(self, lanes: Sequence[int]) -> bytes | None:
        """The memory of these lanes, where the parent cannot see it."""
        if self._port.is_shared:
            return None
        parts = []
        for lane in lanes:
            signature = self._told[lane]
            assert signature is not None
            _, layout, memory = self._blocks[signature]
            parts.append(memory[lane * layout.stride : (lane + 1) * layout.stride])
        return b"".join(parts)
