"""Decides who is in the next batch and when it leaves. No clock, no thread, no socket: lanes come
in, batches go out, and time is an argument (any clock that never falls, in seconds).

A batch leaves when a policy slot is free and, in one ready queue,

- the ready lanes reach the target of the cycle model (see `hocket.cycle`), or
- every awaited lane is ready, or
- the oldest has waited longer than it is worth.

Awaited are lanes that execute a chunk and are not overdue. A lane in reset, build or replacement
has left and is awaited by nobody; neither is a lane whose kind takes much longer than most, for it
comes when it comes. Every operation on a lane is O(log lanes), mostly O(1); the model is asked
again only when what it was told has moved.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from hocket.cycle import Contention, Latency, RunningMedian, Work, target_batch

OVERDUE = 2.0
"""A lane that executes for so many times its kind's median is no longer awaited."""
PATIENCE = 1.5
"""The oldest ready lane waits at most so many times the time to execute a chunk."""
SLOW = 2.0
"""A kind that takes so many times longer than most chunks is never awaited."""
RECHECK = 16
"""Batches after which the target is computed again, even where the lanes stayed the same."""
MOVED = 0.1
"""Share of the lanes that must come or go before the target is computed again."""
KIND_WINDOW = 31
ALL_WINDOW = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler is told; the rest it measures."""

    cores: int
    max_batch: int = 64
    concurrency: int = 1
    """Inferences that may run at once."""

    def __post_init__(self) -> None:
        for name in ("cores", "max_batch", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The lanes of one batch, oldest first, all of one queue."""

    lanes: tuple[int, ...]
    queue: Hashable


class _Queue:
    """Ready lanes of one signature, oldest first, and how many more are coming."""

    __slots__ = ("awaited", "key", "lanes", "members", "members_at_target", "ready", "target")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.ready: dict[int, float] = {}
        """Lane to the time since when it is ready. Dicts keep order, and removal is O(1)."""
        self.awaited = 0
        self.members = 0
        """Lanes whose last observation was of this signature and that have not left."""
        self.target = 1
        self.members_at_target = 0

    @property
    def oldest(self) -> float:
        return next(iter(self.ready.values()))


class _Kind:
    """Chunks that should take about the same time to execute."""

    __slots__ = ("is_slow", "running", "seconds")

    def __init__(self) -> None:
        self.seconds = RunningMedian(KIND_WINDOW)
        self.running: dict[_Queue, int] = {}
        """Lanes that execute and are not overdue, by the queue that they will come back to."""
        self.is_slow = False


class _Lane:
    """Where a lane is: ready, in a batch, or executing (then `kind` is set)."""

    __slots__ = ("is_late", "kind", "lane_seconds", "queue", "serial", "started")

    def __init__(self, queue: _Queue) -> None:
        self.queue = queue
        self.kind: _Kind | None = None
        self.is_late = False
        self.started = 0.0
        self.lane_seconds = 0.0
        self.serial = 0


class Scheduler:
    """Lanes in, batches out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._lanes: dict[int, _Lane] = {}
        self._queues: dict[Hashable, _Queue] = {}
        self._kinds: dict[Hashable, _Kind] = {}
        self._latency = Latency()
        self._all_seconds = RunningMedian(ALL_WINDOW)
        self._contention = Contention(config.cores)
        self._executing = 0
        self._lane_seconds = 0.0
        """Integral of `_executing` over time, up to `_counted_at`."""
        self._counted_at = 0.0
        self._late_at: list[tuple[float, int, int]] = []
        self._serial = 0
        self._in_flight = 0
        self._batches = 0
        self._stale_at = 0

    # -- What happens to lanes -------------------------------------------------------------------

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        """Chunks were just sent to these lanes. `kind` is what their duration depends on."""
        chunks = self._kinds.get(kind)
        if chunks is None:
            chunks = self._kinds[kind] = _Kind()
        seconds = chunks.seconds.value or self._all_seconds.value
        self._count(now, len(lanes))
        for number in lanes:
            lane = self._lanes.get(number)
            if lane is None:
                raise ValueError(f"Lane {number} was never ready; it cannot execute a chunk.")
            if lane.kind is not None or number in lane.queue.ready:
                raise ValueError(f"Lane {number} is not in a batch; it cannot execute a chunk.")
            lane.kind = chunks
            lane.started = now
            lane.lane_seconds = self._lane_seconds
            lane.is_late = False
            self._serial = lane.serial = self._serial + 1
            self._await(lane, 1)
            if seconds is not None:
                heappush(self._late_at, (now + OVERDUE * seconds, lane.serial, number))

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        """An observation came. `busy_s` is how long the chunk took; None after a reset."""
        place = self._queues.get(queue)
        if place is None:
            place = self._queues[queue] = _Queue(queue)
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = _Lane(place)
            place.members += 1
        else:
            if lane in known.queue.ready:
                raise ValueError(f"Lane {lane} is ready already.")
            self._stop(known, now, busy_s)
            if known.queue is not place:
                known.queue.members -= 1
                place.members += 1
                known.queue = place
        place.ready[lane] = now

    def leave(self, lane: int) -> None:
        """The lane is in reset, build or replacement, has ended or is gone: nobody awaits it."""
        known = self._lanes.pop(lane, None)
        if known is None:
            return
        known.queue.ready.pop(lane, None)
        known.queue.members -= 1
        if known.kind is not None:
            self._executing -= 1
            if not known.is_late:
                self._await(known, -1)

    # -- What the policy does --------------------------------------------------------------------

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up."""
        for size, seconds in points.items():
            self._latency.observe(size, seconds)
        self._stale_at = self._batches

    def next_batch(self, now: float) -> BatchPlan | None:
        """Take a batch out of its queue, and a policy slot; None if nothing should leave now."""
        if self._in_flight >= self._config.concurrency:
            return None
        self._forget_late(now)
        chosen: _Queue | None = None
        for queue in self._queues.values():
            # Between queues the one whose oldest lane waits longest goes first: none starves.
            if queue.ready and (chosen is None or queue.oldest < chosen.oldest):
                self._aim(queue)
                if self._leaves(queue, now):
                    chosen = queue
        if chosen is None:
            return None
        lanes = tuple(islice(chosen.ready, self._take(chosen)))
        for lane in lanes:
            del chosen.ready[lane]
        self._in_flight += 1
        self._batches += 1
        return BatchPlan(lanes=lanes, queue=chosen.key)

    def inferred(self, size: int, seconds: float, now: float) -> None:
        """A batch is back: a slot is free again, and this is what it cost."""
        del now
        if self._in_flight == 0:
            raise ValueError("No batch is in flight.")
        self._in_flight -= 1
        self._latency.observe(size, seconds)

    def wake_at(self, now: float) -> float | None:
        """When `next_batch` may answer differently though nothing happens; None if never."""
        if self._in_flight >= self._config.concurrency:
            return None
        self._forget_late(now)
        times = [q.oldest + self._patience_s() for q in self._queues.values() if q.ready]
        if not times:
            return None
        if self._late_at:
            times.append(self._late_at[0][0])
        return max(now, min(times))

    # -- For display -----------------------------------------------------------------------------

    def target(self, queue: Hashable) -> int:
        """How many lanes a batch of this queue waits for."""
        place = self._queues.get(queue)
        return place.target if place is not None else 1

    @property
    def waiting(self) -> int:
        """Lanes that are ready and in no batch."""
        return sum(len(queue.ready) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Batches that are being inferred."""
        return self._in_flight

    # -- Rules -----------------------------------------------------------------------------------

    def _leaves(self, queue: _Queue, now: float) -> bool:
        return (
            len(queue.ready) >= queue.target
            or queue.awaited == 0
            or queue.oldest + self._patience_s() <= now
        )

    def _take(self, queue: _Queue) -> int:
        return min(len(queue.ready), self._config.max_batch)

    def _patience_s(self) -> float:
        return PATIENCE * (self._all_seconds.value or 0.0)

    def _aim(self, queue: _Queue) -> None:
        if self._batches >= self._stale_at:
            self._stale_at = self._batches + RECHECK
            self._sort_kinds()
            for place in self._queues.values():
                place.members_at_target = -1
        moved = abs(queue.members - queue.members_at_target)
        if queue.members_at_target < 0 or moved > MOVED * queue.members_at_target:
            queue.members_at_target = queue.members
            queue.target = self._target(queue)

    def _target(self, queue: _Queue) -> int:
        seconds = self._all_seconds.value
        if seconds is None or not self._latency:
            return 1
        work = Work(
            cores=self._config.cores,
            execute_s=seconds / self._contention.slowdown,
            concurrency=self._config.concurrency * queue.members / len(self._lanes),
            contention=self._contention.exponent,
            max_batch=self._config.max_batch,
        )
        return target_batch(queue.members, work, self._latency)

    def _sort_kinds(self) -> None:
        """Say which kinds are slow; what was awaited of them changes with it."""
        usual = self._all_seconds.value
        if usual is None:
            return
        for kind in self._kinds.values():
            seconds = kind.seconds.value
            is_slow = seconds is not None and seconds > SLOW * usual
            if is_slow != kind.is_slow:
                kind.is_slow = is_slow
                for queue, count in kind.running.items():
                    queue.awaited += -count if is_slow else count

    # -- Book-keeping ----------------------------------------------------------------------------

    def _await(self, lane: _Lane, change: int) -> None:
        kind = lane.kind
        assert kind is not None
        kind.running[lane.queue] = kind.running.get(lane.queue, 0) + change
        if not kind.is_slow:
            lane.queue.awaited += change

    def _stop(self, lane: _Lane, now: float, busy_s: float | None) -> None:
        kind = lane.kind
        if kind is None:
            return
        if not lane.is_late:
            self._await(lane, -1)
        self._count(now, -1)
        lane.kind = None
        if busy_s is None:
            return
        usual = kind.seconds.value
        if usual and now > lane.started:
            load = (self._lane_seconds - lane.lane_seconds) / (now - lane.started)
            self._contention.observe(load, busy_s / usual)
        kind.seconds.add(busy_s)
        self._all_seconds.add(busy_s)

    def _count(self, now: float, change: int) -> None:
        self._lane_seconds += self._executing * (now - self._counted_at)
        self._counted_at = now
        self._executing += change

    def _forget_late(self, now: float) -> None:
        """Stop awaiting lanes that are overdue, and drop what no longer holds."""
        late = self._late_at
        while late:
            when, serial, number = late[0]
            lane = self._lanes.get(number)
            holds = lane is not None and lane.serial == serial and lane.kind is not None
            if holds and when > now:
                return
            heappop(late)
            if holds and lane is not None:
                lane.is_late = True
                self._await(lane, -1)
