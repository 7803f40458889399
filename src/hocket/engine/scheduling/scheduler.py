"""Decides who is in the next batch and when it leaves. No clock, no thread, no socket: lanes come
in, batches go out, and time is an argument (any clock that never falls, in seconds).

When a policy slot is free, a queue whose lanes are ready asks what is worth most (see
`value.py`): to leave now, with all rows or with fewer, or to wait for lanes that come.
What it is told to wait for, it waits for: until that time or that many are ready. Where chunks
and inferences are so short that asking costs more than it gains, a batch leaves at once, or lanes
that come straight back are gathered.

Of several queues the one goes first whose rows have waited most for each second of their batch. Of
several slots each counts on its share of the lanes, whatever their queues. Rows of one simulator
share a step. Where being out of step costs them more than it saves (see `lockstep.py`),
they stay together: a batch leaves when all are ready or overdue. By how much lanes that execute
slow inferences down is learnt; where one slot then gives more than several, one is used.

A lane whose env is reset for its next trial is awaited as if it executed a chunk, but for rows of
one simulator, which do not wait for each other's resets. A lane in its first reset, in build or
replacement is awaited by nobody, nor is one of which nothing is known (a server's connections:
`ready` and `leave` only).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from hocket.engine.scheduling.estimates import Latency, slowed_by
from hocket.engine.scheduling.lockstep import Lockstep
from hocket.engine.scheduling.value import Coming, Value, arrivals
from hocket.workers.median import RunningMedian

# What other values lose was read as for those of `value.py`.
RECHECK_S = 0.3
"""Seconds after which values are computed again, which takes about a millisecond. Without it a
policy that drifts loses 0.5 %, and one that had a hiccup 1 to 3 %; with 1 s one short run lost
11 %."""
BRIEF_S = 4e-3
"""Seconds of an inference of all lanes under which a decision, of about 0.3 ms, is not worth its
own time."""
SLICE_S = 1e-3
"""Seconds, about, that a core gives to one process before the next. Shorter chunks of a brief
policy are gathered: they come back as fast as cores give them time."""
OVERFULL = 1.15
"""Lanes are gathered until a row costs at most this many times what it costs in the largest batch,
and up to this many times as many leave together. Without it 256 lanes that do nothing take turns of
54 rows instead of 14, and make a third fewer steps a second."""
KIND_WINDOW, QUEUE_WINDOW = 31, 127
"""Chunks whose durations are kept of a kind, and of a queue. With one history for all kinds, two
tasks lose 0.4 %, and 2.7 % at worst."""
GUESSED = 3.0
"""Before the first chunk has ended, chunks are taken to last this many times as long as the
largest batch. Without it all lanes, which begin together, wait for the largest batch, and runs of a
few chunks lose up to 10 %; with 1.0 up to 2 %."""
EXECUTING = attrgetter("executing")
SHARED_WINDOW = 48
"""Inferences by which it is learnt what lanes add that execute."""
SHORTEST_S = 1e-5
"""The shortest wait: a clock has passed it."""


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


class BatchPlan(NamedTuple):
    """The lanes of one batch, oldest first, all of one queue."""

    lanes: tuple[int, ...]
    queue: Hashable


class Patience(NamedTuple):
    """For how long lanes may be waited for."""

    seconds: float
    """Until a batch may be due with nothing else happening."""
    lanes: int = 1
    """How many lanes must come before anything can leave."""
    linger_s: float = 0.0
    """For how long after the first of them the others may be waited for."""
    awaits_all: bool = False
    """No batch leaves before all lanes are ready, or overdue."""


class Queue:
    """Lanes of one signature: those that are ready, oldest first, and those that will come back."""

    def __init__(self) -> None:
        self.ready: dict[int, float] = {}
        """Lane to the time since when it is ready. Dicts keep order, and removal is O(1)."""
        self.executing: dict[int, tuple[float, RunningMedian, float]] = {}
        """Lane to when its chunk was sent or its reset began, how long others of its kind took, and
        since when it is away."""
        self.members = 0
        """Lanes whose last observation was of this signature and that have not left."""
        self.seconds = RunningMedian(QUEUE_WINDOW)
        """How long lanes were away, whatever for: what comes often counts often."""
        self.resets = RunningMedian(KIND_WINDOW)
        """How long resets took."""
        self.wake_at, self.wanted = -inf, 0
        """What it waits for: this time, or this many ready lanes."""
        self.check_at = -inf
        """When what follows is computed again."""
        self.value: Value | None = None
        self.gathered, self.gather_s = 1, 0.0
        """How many lanes are gathered, and for how long; 0 s: they are not."""
        self.is_together = False
        """All members go in one batch, as rows do that should stay in step."""

    def coming(self, now: float) -> Coming:
        """When lanes under way should come."""
        found: dict[RunningMedian, list[tuple[float, int]]] = {}
        for (began, took, _), lanes in Counter(self.executing.values()).items():
            known = took if took.values else self.seconds
            found.setdefault(known, []).append((now - began, lanes))
        return arrivals((known.values, running) for known, running in found.items() if known.values)


class Scheduler:
    """Lanes in, batches out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._queues: dict[Hashable, Queue] = defaultdict(Queue)
        self._home: dict[int, Queue] = {}
        """The queue of each lane."""
        self._left: dict[int, tuple[Queue, float]] = {}
        """The queue of each lane that left while a chunk of it was under way, and since when."""
        self._kinds: dict[Hashable, RunningMedian] = defaultdict(lambda: RunningMedian(KIND_WINDOW))
        self.latency = Latency()
        """How long batches should take while no lane executes."""
        self._slowed = 0.0
        """The share by which each lane that executes makes an inference longer."""
        self._inferred: deque[tuple[int, int, float]] = deque(maxlen=SHARED_WINDOW)
        """Rows of the last inferences, the lanes that executed then, and seconds."""
        self._settled_at = -inf
        """When the last lane was first counted, whose first reset may have slowed others down."""
        self._beside: list[tuple[float, int]] = []
        """When each batch left that is being inferred, and how many lanes executed then."""
        self._slots = config.concurrency
        """How many inferences run at once: one, where several would slow each other's lanes."""
        self._lockstep = Lockstep(config.max_batch)
        self._has_trials = False
        """Lanes are given trials here: they are not a server's connections."""
        self.in_flight = 0
        """Batches that are being inferred."""

    # -- What happens to lanes -------------------------------------------------------------------

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        """Chunks were just sent to these lanes. `kind` is what their duration depends on."""
        if self._lockstep.step_s is not None:
            self._lockstep.sent(len(lanes))
        sent = (now, self._kinds[kind], now)
        for lane in lanes:
            queue = self._home.get(lane)
            if queue is None or lane in queue.ready or lane in queue.executing:
                raise ValueError(f"Lane {lane} was in no batch; it cannot execute a chunk.")
            queue.executing[lane] = sent

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        """An observation came. `busy_s` is how long the chunk took; None after a reset, or where
        another lane's chunk that ended with it tells much the same."""
        own = self._queues[queue]
        home = self._home.get(lane, own)
        if lane in home.ready:
            raise ValueError(f"Lane {lane} is ready already.")
        sent = home.executing.pop(lane, None)
        if sent is not None and (busy_s is not None or sent[1] is home.resets):
            took = now - sent[0] if busy_s is None else busy_s
            sent[1].add(took)
            home.seconds.add(sent[0] - sent[2] + took)
        if home is not own or lane not in self._home:
            # It is new, or has another signature: its next trial is of another suite.
            home.members -= home is not own
            own.members += 1
            self._home[lane] = own
            self._settled_at = now
        own.ready[lane] = now

    def begins(self, lane: int, now: float) -> None:
        """The lane was just given a trial: it is reset, and should come back to where it was."""
        self._has_trials = True
        if lane in self._left and self._lockstep.step_s is None:
            queue, away_since = self._left.pop(lane)
            queue.executing[lane] = (now, queue.resets, away_since)
            queue.members += 1
            self._home[lane] = queue

    def leave(self, lane: int) -> None:
        """The lane's trial has ended, or it is built or replaced, or gone: nobody awaits it."""
        queue = self._home.pop(lane, None)
        if queue is None:
            return
        if (sent := queue.executing.pop(lane, None)) is not None:
            self._lockstep.ended()
            self._left[lane] = (queue, sent[2])
        queue.ready.pop(lane, None)
        queue.members -= 1
        queue.wake_at = -inf

    def forget(self, queue: Hashable) -> bool:
        """Drop what is known of a queue; False where it still has lanes."""
        if queue in self._queues and not self._queues[queue].members:
            del self._queues[queue]
        return queue not in self._queues

    def share_step(self, seconds: float | None) -> None:
        """Seconds of the step that all lanes share; 0 before the first, None without one."""
        self._lockstep.step_s = seconds

    # -- What the policy does --------------------------------------------------------------------

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        for size, seconds in points.items():
            self.latency.seed(size, seconds)

    def next_batch(self, now: float) -> BatchPlan | None:
        """Take a batch out of its queue, and a policy slot; None if nothing should leave now."""
        if self.in_flight >= self._slots:
            return None
        # No queue starves, and a few rows that were left over do not hold up a full batch: that was
        # a sixth of two signatures' throughput where a knee is below half of the lanes.
        most, chosen = -inf, None
        is_only = len(self._queues) == 1
        for key, queue in self._queues.items():
            if queue.ready and (rows := self._rows(queue, now)):
                if is_only:
                    chosen = key, queue, rows
                    break
                waited_s = sum(now - since for since in islice(queue.ready.values(), rows))
                if (worth := waited_s / (self.latency.about(rows) or 1.0)) > most:
                    most, chosen = worth, (key, queue, rows)
        if chosen is None:
            return None
        key, queue, rows = chosen
        lanes = tuple(islice(queue.ready, rows))
        for lane in lanes:
            del queue.ready[lane]
        queue.wake_at = -inf
        self._beside.append((now, sum(map(len, map(EXECUTING, self._queues.values())))))
        self.in_flight += 1
        return BatchPlan(lanes, key)

    def urgent_batch(self, lanes: Sequence[int], queue: Hashable) -> BatchPlan:
        """Take these ready lanes of a queue before all others; to be called where `has_slot`."""
        for lane in lanes:
            del self._queues[queue].ready[lane]
        self._queues[queue].wake_at = -inf
        self._beside.append((-inf, 0))
        self.in_flight += 1
        return BatchPlan(tuple(lanes), queue)

    @property
    def has_slot(self) -> bool:
        """True where another batch may be inferred now."""
        return self.in_flight < self._config.concurrency

    def inferred(self, size: int, seconds: float, now: float) -> None:
        """A batch is back: a slot is free again, and this is what it cost."""
        if self.in_flight == 0:
            raise ValueError("No batch is in flight.")
        if self._lockstep.step_s is not None:
            self._lockstep.inferred(seconds - self.latency.about(size))
        batches, at = self._beside, 0
        if len(batches) > 1:
            # Those of several slots come back in any order: this one left about so long ago.
            at = min(range(len(batches)), key=lambda i: abs(now - seconds - batches[i][0]))
        left_at, beside = batches.pop(at)
        if left_at >= self._settled_at:
            self._inferred.append((size, beside, seconds))
        seconds /= 1.0 + self._slowed * beside
        self.latency.observe(size, seconds)
        self._slot_is_back()

    def given_up(self, now: float, slots: int) -> None:
        """A batch will not come back; from now on `slots` inferences may run at once."""
        self._beside.pop(0)
        self._config = replace(self._config, concurrency=max(1, slots))
        self._slots = self._config.concurrency
        self._slot_is_back()

    def _slot_is_back(self) -> None:
        self.in_flight -= 1
        for queue in self._queues.values():
            queue.wake_at = -inf

    def patience(self, now: float, longest: float) -> Patience:
        """How long lanes may be waited for, at most `longest` seconds."""
        wake_at = self.wake_at(now)
        seconds = longest if wake_at is None else min(max(0.0, wake_at - now), longest)
        lanes, linger_s, is_together = 1, 0.0, self.in_flight == 0
        for queue in self._queues.values():
            is_together = is_together and queue.is_together
            is_gathered = queue.gather_s and self.in_flight < self._config.concurrency
            if is_gathered and len(self._queues) == 1:
                # More than one lane must come for `next_batch` to answer differently.
                left_s = queue.gather_s if queue.wake_at == -inf else queue.wake_at - now
                if left_s > 0:
                    rows = min(queue.gathered - len(queue.ready), len(queue.executing))
                    lanes, linger_s = max(1, rows), left_s
        return Patience(seconds, lanes, linger_s, is_together)

    def wake_at(self, now: float) -> float | None:
        """When `next_batch` may answer differently though nothing happens; None if never."""
        earliest = inf
        if self.in_flight < self._slots:
            for queue in self._queues.values():
                if queue.ready and queue.wake_at < earliest:
                    earliest = queue.wake_at
        return None if earliest == inf else max(now, earliest)

    @property
    def waiting(self) -> int:
        """Lanes that are ready and in no batch."""
        return sum(len(queue.ready) for queue in self._queues.values())

    # -- When a batch leaves ---------------------------------------------------------------------

    def _rows(self, queue: Queue, now: float) -> int:
        """How many rows leave now; 0 where the queue waits, by a plan that it then has."""
        rows = len(queue.ready)
        if now < queue.wake_at and rows < queue.wanted:
            return 0
        if now >= queue.check_at:
            self._check(queue, now)
        came, queue.wake_at = rows, -inf
        if queue.is_together:
            is_unknown = queue.executing and not queue.seconds.values
            last_s = inf if is_unknown else queue.coming(now).at[-1]
            queue.wake_at, queue.wanted = now + last_s, queue.members
        elif queue.gather_s:
            if queue.executing:
                oldest = next(iter(queue.ready.values()))
                queue.wake_at, queue.wanted = oldest + queue.gather_s, queue.gathered
            rows = ceil(OVERFULL * queue.gathered)
        elif queue.value is not None:
            wait_s, rows = queue.value.decide(rows, queue.coming(now))
            if wait_s > 0.0:
                queue.wake_at, queue.wanted = now + max(wait_s, SHORTEST_S), rows
        if now < queue.wake_at and came < queue.wanted:
            return 0
        return min(rows, self._config.max_batch)

    def _check(self, queue: Queue, now: float) -> None:
        """Bring what the queue goes by up to date."""
        slots, seconds = self._config.concurrency, queue.seconds.value
        queue.check_at = -inf if seconds is None else now + RECHECK_S
        lanes, step_s = queue.members, self._lockstep.step_s
        is_alone = lanes == len(self._home) and slots == 1
        queue.is_together = is_alone and self._lockstep.pays(lanes, seconds, self.latency.predict)
        queue.value, queue.gather_s = None, 0.0
        is_blind = seconds is None and (step_s is not None or not self._has_trials)
        if is_blind or queue.is_together:
            return
        # Each of several slots has its share of all lanes, whatever their queues.
        share = max(1, round(len(self._home) / slots))
        top = min(lanes, share, self._config.max_batch)
        infer_s = self.latency.curve(top)
        if infer_s[-1] >= BRIEF_S:
            mean_s = max(1e-6, float(np.mean(queue.seconds.values or [GUESSED * infer_s[-1]])))
            sizes = set(self.latency.timed)
            if step_s is not None:
                sizes = {self._lockstep.target(share, mean_s, self.latency.predict)}
            if self.latency.timed and self._inferred:
                self._slowed = slowed_by(self._inferred, self.latency.at_first, len(self._home))
            self._slots = slots
            others = (len(self._home) - share) * mean_s / (mean_s + infer_s[-1])
            queue.value = Value(share, mean_s, infer_s, sizes, self._slowed, others)
            if self._slowed and slots > 1:
                top, left = min(lanes, self._config.max_batch), len(self._home) - lanes
                curve = self.latency.curve(top)
                whole = Value(lanes, mean_s, curve, sizes, self._slowed, left)
                if 0.95 * whole.lane_rate > queue.value.lane_rate:
                    queue.value, self._slots = whole, 1
        elif seconds is not None and seconds < SLICE_S:
            # One cohort more than can be inferred at once is the least that keeps all busy.
            by_row = infer_s[1:] / np.arange(1, top + 1)
            enough = 1 + int(np.argmax(by_row <= OVERFULL * by_row.min()))
            queue.gathered = min(ceil(lanes / (slots + 1)), enough)
            queue.gather_s = queue.gathered * seconds / self._config.cores
