"""Decides who is in the next batch and when it leaves. No clock, no thread, no socket: lanes come
in, batches go out, and time is an argument (any clock that never falls, in seconds).

When a policy slot is free, a queue whose lanes are ready asks what is worth most (see
`hocket.engine.value`): to leave now, with all rows or with fewer, or to wait for lanes that come.
What it is told to wait for, it waits for: until that time, or until so many are ready. Where chunks
and inferences are so short that asking costs more than it gains, a batch leaves at once, or lanes
that come straight back are gathered.

Rows of one simulator share a step. Where being out of step costs them more than it saves (see
`hocket.engine.lockstep`), they stay together: a batch leaves when all are ready or overdue.

A lane in reset, build or replacement has left and is awaited by nobody. Lanes that nothing is known
of (a server's connections: `ready` and `leave` only) are not awaited either.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from hocket.core.estimates import Latency, RunningMedian
from hocket.engine.lockstep import Lockstep
from hocket.engine.value import LATE, Value, arrivals

# Chosen by hand; what other values lose was read as for those of `hocket.engine.value`.
PATIENCE = 1.5
"""The oldest ready lane waits at most this many times the median duration of a chunk, counted from
when a slot was free: a lane that never comes back must not be waited for. With 0.5 a flat policy
loses 15 %; with 5 two signatures lose 5 %."""
PATIENCE_INFER = 0.2
"""Or this many inferences, where that is longer: lanes that go on while the policy thinks ask again
as soon as they are answered, and one that comes too late for its batch waits for all of the next.
With 0 lanes whose delay is all of a chunk lose 16 %."""
RECHECK, RECHECK_S = 32, 0.1
"""Batches and seconds after which values are computed again; at first after 1, 2, 4 ... batches.
With 200 batches two signatures lose 1 %; the seconds bound what brief policies pay."""
MOVED = 0.1
"""Share of the lanes that must come or go for values to be computed again at once. With 1 two tasks
lose 2 %."""
BRIEF_S = 4e-3
"""Seconds of an inference of all lanes under which a decision, of about 0.3 ms, is not worth its
own time."""
SLICE_S = 1e-3
"""Seconds, about, that a core gives to one process before the next. Shorter chunks of a brief
policy are gathered: they come back as fast as cores give them time."""
OVERFULL = 1.15
"""Lanes are gathered until a row costs at most this many times what it costs in the largest batch,
and up to this many times as many leave together."""
KIND_WINDOW, QUEUE_WINDOW = 31, 127
"""Chunks whose durations are kept of a kind, and of a queue. With 7 of a kind heavy tails lose
3 %."""
FAR = 10.0
"""A chunk counts into the mean duration as at most this many medians. With 2 two tasks lose 1 %."""
SMOOTH = 0.1
"""Weight of the newest batch in the mean size of a queue's batches."""
SHORTEST_S = 1e-5
"""The shortest wait: a clock has passed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler is told; the rest it measures."""

    cores: int
    max_batch: int = 64
    concurrency: int = 1
    """Inferences that may run at once."""
    batch_sizes: tuple[int, ...] = ()
    """The sizes to which the policy pads its batches; () where it takes any size as it is."""

    def __post_init__(self) -> None:
        for name in ("cores", "max_batch", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


class BatchPlan(NamedTuple):
    """The lanes of one batch, oldest first, all of one queue."""

    lanes: tuple[int, ...]
    queue: Hashable


class Scheduler:
    """Lanes in, batches out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._lanes: dict[int, WaitingLane] = {}
        self._queues: dict[Hashable, Queue] = {}
        self._kinds: dict[Hashable, RunningMedian] = {}
        self._latency = Latency()
        self._lockstep = Lockstep(config.max_batch)
        self._in_flight = self._batches = 0
        self._free_since = 0.0
        """When a slot was last given back."""

    # -- What happens to lanes -------------------------------------------------------------------

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        """Chunks were just sent to these lanes. `kind` is what their duration depends on."""
        took = self._kinds.get(kind)
        if took is None:
            took = self._kinds[kind] = RunningMedian(KIND_WINDOW)
        self._lockstep.sent(len(lanes))
        cohorts: dict[Queue, Cohort] = {}
        for lane in lanes:
            known = self._lanes.get(lane)
            if known is None or known.cohort is None or known.cohort.executes:
                raise ValueError(f"Lane {lane} was in no batch; it cannot execute a chunk.")
            known.join(None)
            cohort = cohorts.get(known.queue)
            if cohort is None:
                cohort = cohorts[known.queue] = Cohort(took, now, executes=True)
            known.took = took
            known.join(cohort)

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        """An observation came. `busy_s` is how long the chunk took; None after a reset."""
        own = self._queues.get(queue)
        if own is None:
            own = self._queues[queue] = Queue(queue)
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = WaitingLane(own)
            own.members += 1
        elif lane in known.queue.ready:
            raise ValueError(f"Lane {lane} is ready already.")
        if busy_s is not None and known.took is not None:
            known.took.add(busy_s)
            known.queue.seconds.add(busy_s)
        known.join(None)
        if known.queue is not own:
            # Its observations have another signature: its next trial is of another suite.
            known.queue.members -= 1
            own.members += 1
            known.queue = own
        own.ready[lane] = now

    def ready_together(
        self, lanes: Sequence[int], queue: Hashable, now: float, busy_s: Sequence[float]
    ) -> None:
        """Chunks of many lanes ended at once: what `ready` does for each of them. Of their
        durations one is looked at: what ends at once tells much the same."""
        last = len(lanes) - 1
        for index, lane in enumerate(lanes):
            self.ready(lane, queue, now, busy_s[index] if index == last else None)

    def leave(self, lane: int) -> None:
        """The lane is in reset, build or replacement, has ended or is gone: nobody awaits it."""
        known = self._lanes.pop(lane, None)
        if known is None:
            return
        if known.cohort is not None and known.cohort.executes:
            self._lockstep.ended()
        known.join(None)
        known.queue.ready.pop(lane, None)
        known.queue.members -= 1
        known.queue.plan = None

    def forget(self, queue: Hashable) -> bool:
        """Drop what is known of a queue; False where it still has lanes."""
        own = self._queues.get(queue)
        if own is not None and own.members:
            return False
        self._queues.pop(queue, None)
        return True

    def share_step(self, seconds: float | None) -> None:
        """Seconds of the step that all lanes share; 0 before the first, None without one."""
        self._lockstep.step_s = seconds

    # -- What the policy does --------------------------------------------------------------------

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        for size, seconds in points.items():
            self._latency.seed(size, seconds)
        for queue in self._queues.values():
            queue.check_at = (0, -inf)

    def next_batch(self, now: float) -> BatchPlan | None:
        """Take a batch out of its queue, and a policy slot; None if nothing should leave now."""
        if self._in_flight >= self._config.concurrency:
            return None
        chosen, size = None, 0
        for queue in self._queues.values():
            # Between queues the one whose oldest lane waits longest goes first: none starves.
            if queue.ready and (chosen is None or queue.oldest < chosen.oldest):
                rows = self._rows(queue, now)
                if rows:
                    chosen, size = queue, rows
        if chosen is None:
            return None
        lanes = chosen.take(size)
        chosen.size += SMOOTH * (size - chosen.size)
        self._in_flight += 1
        self._batches += 1
        back_at = now + self._latency.about(size)
        cohorts: dict[RunningMedian | None, Cohort] = {}
        for lane in lanes:
            known = self._lanes[lane]
            cohort = cohorts.get(known.took)
            if cohort is None:
                cohort = cohorts[known.took] = Cohort(known.took, back_at, executes=False)
            known.join(cohort)
        return BatchPlan(lanes=lanes, queue=chosen.key)

    def inferred(self, size: int, seconds: float, now: float) -> None:
        """A batch is back: a slot is free again, and this is what it cost."""
        if self._in_flight == 0:
            raise ValueError("No batch is in flight.")
        self._in_flight -= 1
        self._free_since = now
        if self._lockstep.step_s is not None:
            self._lockstep.inferred(seconds - self._latency.about(size))
        self._latency.observe(size, seconds)
        for queue in self._queues.values():
            queue.plan = None

    def given_up(self, now: float, slots: int) -> None:
        """A batch will not come back; from now on `slots` inferences may run at once."""
        self._in_flight -= 1
        self._free_since = now
        self._config = replace(self._config, concurrency=max(1, slots))
        for queue in self._queues.values():
            queue.plan, queue.check_at = None, (0, -inf)

    def infer_s(self, size: int) -> float:
        """How long a batch of this size should take."""
        return self._latency.about(size)

    def wake_at(self, now: float) -> float | None:
        """When `next_batch` may answer differently though nothing happens; None if never."""
        if self._in_flight >= self._config.concurrency:
            return None
        times = [
            now if queue.plan is None else max(now, queue.plan.until)
            for queue in self._queues.values()
            if queue.ready
        ]
        earliest = min(times, default=inf)
        return None if earliest == inf else earliest

    def wanted(self, now: float) -> tuple[int, float]:
        """How many lanes must come for `next_batch` to answer differently, and within how many
        seconds of the first of them. More than one only where lanes are gathered."""
        if len(self._queues) != 1 or self._in_flight >= self._config.concurrency:
            return 1, 0.0
        (queue,) = self._queues.values()
        if not queue.gather_s:
            return 1, 0.0
        left_s = queue.plan.until - now if queue.plan is not None else queue.gather_s
        rows = min(queue.gathered - len(queue.ready), queue.executing)
        return (max(1, rows), left_s) if left_s > 0 else (1, 0.0)

    @property
    def awaits_all(self) -> bool:
        """Whether no batch leaves before all lanes are ready, or overdue."""
        return self._in_flight == 0 and all(queue.is_together for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        """Lanes that are ready and in no batch."""
        return sum(len(queue.ready) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Batches that are being inferred."""
        return self._in_flight

    # -- When a batch leaves ---------------------------------------------------------------------

    def _rows(self, queue: Queue, now: float) -> int:
        """How many rows leave now; 0 where the queue waits, by a plan that it then has."""
        ready = len(queue.ready)
        if queue.plan is not None and now < queue.plan.until and ready < queue.plan.rows:
            return 0
        self._check(queue, now)
        all_rows = min(ready, self._config.max_batch)
        since = max(queue.oldest, self._free_since)
        queue.plan = None
        if queue.is_together:
            queue.plan = Plan(self._last_at(queue, now), queue.members)
        elif queue.gather_s:
            if queue.executing:
                queue.plan = Plan(since + queue.gather_s, queue.gathered)
            all_rows = min(all_rows, ceil(OVERFULL * queue.gathered))
        elif queue.value is not None:
            infer_s = self._latency.about(queue.members)
            patient_s = max(PATIENCE * (queue.seconds.value or 0.0), PATIENCE_INFER * infer_s)
            left_s = since + patient_s - now
            horizon_s = patient_s + infer_s
            times, came = arrivals(queue.under_way(now), horizon_s)
            wait_s, rows = queue.value.decide(ready, times, came, max(0.0, left_s))
            if wait_s <= 0.0:
                return min(rows, all_rows)
            queue.plan = Plan(now + max(wait_s, SHORTEST_S), max(rows, ready + 1))
        if queue.plan is not None and now < queue.plan.until and ready < queue.plan.rows:
            return 0
        return all_rows

    def _check(self, queue: Queue, now: float) -> None:
        """Bring what the queue goes by up to date, where it may have moved."""
        moved = abs(queue.members - queue.members_at_check)
        batch, at = queue.check_at
        is_due = self._batches >= batch and now >= at
        if not is_due and moved <= max(1, MOVED * queue.members_at_check):
            return
        queue.check_at = (self._batches + min(RECHECK, max(1, self._batches)), now + RECHECK_S)
        queue.members_at_check = lanes = queue.members
        share = self._config.concurrency * lanes / len(self._lanes)
        seconds = queue.seconds.value
        is_alone = lanes == len(self._lanes) and self._config.concurrency == 1
        queue.is_together = is_alone and self._lockstep.pays(lanes, seconds, self._latency.predict)
        queue.value, queue.gather_s = None, 0.0
        is_server = not self._kinds and self._batches > self._config.concurrency
        if is_server or queue.is_together:
            return
        top = min(lanes, self._config.max_batch)
        infer_s = self._latency.curve(top)
        if infer_s[-1] < BRIEF_S:
            if seconds is not None and seconds < SLICE_S:
                # One cohort more than can be inferred at once is the least that keeps all busy.
                by_row = infer_s[1:] / np.arange(1, top + 1)
                enough = 1 + int(np.argmax(by_row <= OVERFULL * by_row.min()))
                queue.gathered = min(ceil(lanes / (self._config.concurrency + 1)), enough)
                queue.gather_s = queue.gathered * seconds / self._config.cores
            return
        # Before anything is known, a chunk is taken to last as long as an inference.
        mean_s = float(infer_s[-1])
        if seconds is not None:
            mean_s = float(np.minimum(queue.seconds.values, FAR * seconds).mean())
        # Rows that are inferred beside ours are counted as executing.
        mean_s += (1.0 - 1.0 / max(1.0, share)) * self._latency.predict(round(queue.size))
        sizes = self._sizes(top)
        if self._lockstep.step_s is not None and seconds is not None:
            sizes = [self._lockstep.target(lanes, seconds, self._latency.predict)]
        queue.value = Value(lanes, max(mean_s, 1e-6), infer_s, sizes, max(share, 1e-3))

    def _sizes(self, top: int) -> Iterable[int]:
        """The batches worth a look: a policy's own sizes, or powers of two, three times those, and
        what was timed."""
        sizes: Iterable[int] = self._config.batch_sizes
        if not sizes:
            sizes = [*self._latency.sizes, *(base << k for base in (1, 3) for k in range(8))]
        return {size for size in sizes if size <= top}

    def _last_at(self, queue: Queue, now: float) -> float:
        """When the last lane is overdue. Before anything is known, none is."""
        if queue.seconds.value is None:
            return inf if queue.cohorts else now
        return max(
            (each.started + LATE * queue.usual_s(each) for each in queue.cohorts), default=now
        )


class Plan(NamedTuple):
    """What a queue waits for."""

    until: float
    rows: int
    """Ready lanes at which it looks again though it is earlier."""


class Queue:
    """Ready lanes of one signature, oldest first, and those that will come back to it."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.ready: dict[int, float] = {}
        """Lane to the time since when it is ready. Dicts keep order, and removal is O(1)."""
        self.cohorts: dict[Cohort, None] = {}
        """Of the lanes under way."""
        self.executing = 0
        self.members = 0
        """Lanes whose last observation was of this signature and that have not left."""
        self.seconds = RunningMedian(QUEUE_WINDOW)
        """How long chunks took, whatever their kind: those that come often count often."""
        self.size = 1.0
        """Rows of a batch, on average."""
        self.plan: Plan | None = None
        self.check_at = (0, -inf)
        """From which batch on, and when, what follows is computed again."""
        self.members_at_check = 0
        self.value: Value | None = None
        self.gathered, self.gather_s = 1, 0.0
        """How many lanes are gathered, and for how long; 0 s: they are not."""
        self.is_together = False
        """All members go in one batch, as rows do that had better stay in step."""

    @property
    def oldest(self) -> float:
        return next(iter(self.ready.values()))

    def take(self, count: int) -> tuple[int, ...]:
        """Take the first `count` lanes out of those that are ready."""
        lanes = tuple(islice(self.ready, count))
        for lane in lanes:
            del self.ready[lane]
        self.plan = None
        return lanes

    def usual_s(self, cohort: Cohort) -> float:
        took = cohort.took.value if cohort.took is not None else None
        return took if took is not None else self.seconds.value or 0.0

    def under_way(self, now: float) -> Iterable[tuple[list[float], list[tuple[float, int]]]]:
        """Durations of each kind, with the cohorts of that kind: what `arrivals` asks for."""
        found: dict[RunningMedian, list[tuple[float, int]]] = {}
        for cohort in self.cohorts:
            took = cohort.took if cohort.took is not None and cohort.took.values else self.seconds
            began = cohort.started if cohort.executes else max(now, cohort.started)
            found.setdefault(took, []).append((now - began, cohort.lanes))
        return [(took.values, cohorts) for took, cohorts in found.items() if took.values]


class Cohort:
    """Lanes of one queue whose chunks were sent at once, or are being inferred in one batch."""

    __slots__ = ("executes", "lanes", "started", "took")

    def __init__(self, took: RunningMedian | None, started: float, *, executes: bool) -> None:
        self.took, self.started, self.executes = took, started, executes
        self.lanes = 0


class WaitingLane:
    """A lane as the scheduler knows it: its queue, and what it does."""

    __slots__ = ("cohort", "queue", "took")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.took: RunningMedian | None = None
        """How long chunks of its last one's kind took."""
        self.cohort: Cohort | None = None
        """What it is under way with; None while it is ready."""

    def join(self, cohort: Cohort | None) -> None:
        """Leave the cohort that it is in, and join another."""
        old, queue = self.cohort, self.queue
        if old is not None:
            old.lanes -= 1
            queue.executing -= old.executes
            if not old.lanes:
                del queue.cohorts[old]
        if cohort is not None:
            cohort.lanes += 1
            queue.executing += cohort.executes
            queue.cohorts[cohort] = None
        self.cohort = cohort
