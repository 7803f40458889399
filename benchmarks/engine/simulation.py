"""A discrete-event simulation of lanes, cores and a policy, in virtual time.

It drives anything with the scheduler's methods: the real `Scheduler`, or one of the fixed rules
that people use instead. Executing lanes share the cores equally (processor sharing), or do not use
them at all (`sleeps`). What a rule is not told in a run it is not told here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from math import ceil, inf
from typing import Protocol

from hocket.engine.scheduler import BatchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One situation: lanes, cores, what chunks and batches cost, and what goes wrong."""

    name: str
    lanes: int = 32
    cores: int = 16
    sleeps: bool = False
    execute_s: float = 0.16
    base_s: float = 0.075
    row_s: float = 0.0085
    concurrency: int = 1
    max_batch: int = 64
    jitter: float = 0.1
    """Standard deviation of the log of a chunk's duration."""
    slow_share: float = 0.0
    slow_factor: float = 10.0
    slow_is_known: bool = False
    """Slow chunks are of a kind of their own (a recording lane), not a surprise."""
    tail_share: float = 0.0
    """Share of chunks whose duration is drawn from a Pareto tail."""
    outlier_share: float = 0.0
    outlier_factor: float = 8.0
    episode_chunks: tuple[int, int] = (4, 19)
    reset_s: float = 0.05
    signatures: int = 1
    tasks: int = 1
    """Kinds of chunk; their durations are spread over 0.5 to 2 times `execute_s`."""
    trials: int | None = None
    """Episodes in all: the run ends with its last one. None: a run without end."""
    step_table: tuple[tuple[int, float], ...] = ()
    """Where set, the latency is that of the smallest size in the table that holds the batch."""

    def latency(self, size: int) -> float:
        for limit, seconds in self.step_table:
            if size <= limit:
                return seconds
        return self.base_s + self.row_s * size

    def outlier(self, rng: random.Random) -> float:
        """What one inference's latency is multiplied by."""
        return self.outlier_factor if rng.random() < self.outlier_share else 1.0

    def duration(self, rng: random.Random, task: int, *, is_slow: bool) -> float:
        """Seconds of one chunk, alone on the machine."""
        seconds = self.execute_s * rng.lognormvariate(0.0, self.jitter)
        if self.tasks > 1:
            seconds *= 0.5 * 4.0 ** (task / (self.tasks - 1))
        if self.tail_share and rng.random() < self.tail_share:
            seconds *= min(50.0, 2.0 * rng.paretovariate(1.2))
        return seconds * self.slow_factor if is_slow else seconds


class Rule(Protocol):
    """The scheduler's side that the simulation needs."""

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None: ...
    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None: ...
    def leave(self, lane: int) -> None: ...
    def seed_latency(self, points: Mapping[int, float]) -> None: ...
    def next_batch(self, now: float) -> BatchPlan | None: ...
    def inferred(self, size: int, seconds: float, now: float) -> None: ...
    def wake_at(self, now: float) -> float | None: ...


class Static:
    """A fixed pair: a batch leaves with `batch` rows, or when the oldest waited `wait_s`."""

    def __init__(self, batch: int, wait_s: float, concurrency: int) -> None:
        self.batch, self.wait_s, self.free = batch, wait_s, concurrency
        self.queues: dict[Hashable, dict[int, float]] = {}
        self.place: dict[int, Hashable] = {}

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        pass

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        self.place[lane] = queue
        self.queues.setdefault(queue, {})[lane] = now

    def ready_together(
        self, lanes: Sequence[int], queue: Hashable, now: float, busy_s: Sequence[float]
    ) -> None:
        for lane, seconds in zip(lanes, busy_s, strict=True):
            self.ready(lane, queue, now, seconds)

    def share_step(self, seconds: float | None) -> None:
        pass

    def wanted(self, now: float) -> tuple[int, float]:
        return 1, 0.0

    @property
    def awaits_all(self) -> bool:
        return False

    def infer_s(self, size: int) -> float:
        return 0.0

    def leave(self, lane: int) -> None:
        if lane in self.place:
            self.queues[self.place[lane]].pop(lane, None)

    def seed_latency(self, points: Mapping[int, float]) -> None:
        pass

    def next_batch(self, now: float) -> BatchPlan | None:
        if not self.free:
            return None
        chosen, since = None, inf
        for key, ready in self.queues.items():
            if ready:
                oldest = next(iter(ready.values()))
                full = len(ready) >= self.batch or oldest + self.wait_s <= now
                if full and oldest < since:
                    chosen, since = key, oldest
        if chosen is None:
            return None
        ready = self.queues[chosen]
        lanes = tuple(islice(ready, self.batch))
        for lane in lanes:
            del ready[lane]
        self.free -= 1
        return BatchPlan(lanes=lanes, queue=chosen)

    def inferred(self, size: int, seconds: float, now: float) -> None:
        self.free += 1

    def wake_at(self, now: float) -> float | None:
        if not self.free or self.wait_s == inf:
            return None
        times = [next(iter(r.values())) for r in self.queues.values() if r]
        return max(now, min(times) + self.wait_s) if times else None


@dataclass(slots=True)
class Result:
    """What came of one run."""

    chunks: int = 0
    batches: int = 0
    seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.chunks / self.seconds if self.seconds > 0 else 0.0


class _Lane:
    __slots__ = ("chunks_left", "is_recording", "queue", "rng", "started", "task")

    def __init__(self, number: int, setting: Setting, seed: int) -> None:
        # A lane's own stream, so that every rule meets the same lane, whatever its order.
        self.rng = random.Random(seed * 1_000_003 + number)
        self.queue = number % setting.signatures
        slow = round(setting.lanes * setting.slow_share)
        self.is_recording = number < slow
        self.task = 0
        self.chunks_left = 0
        self.started = 0.0


class Simulation:
    """One run of one rule in one setting."""

    def __init__(self, setting: Setting, rule: Rule, seed: int, chunks: int) -> None:
        self.setting, self.rule, self.limit, self.seed = setting, rule, chunks, seed
        self.rng = random.Random(seed)
        self.lanes = [_Lane(n, setting, seed) for n in range(setting.lanes)]
        self.trials_left = setting.trials if setting.trials is not None else 1 << 60
        self.now = 0.0
        self.work = 0.0
        """Core time that each executing lane has had since the start."""
        self.cpu: list[tuple[float, int, int]] = []
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = count()
        self.result = Result()

    def run(self) -> Result:
        setting = self.setting
        sizes = [1 << k for k in range(20) if 1 << k <= setting.max_batch]
        self.rule.seed_latency({size: setting.latency(size) for size in sizes})
        for number in range(setting.lanes):
            self.begin_episode(number, first=True)
        # The beginning is not what a long run is like; a run with an end counts whole.
        warm = 0 if setting.trials is not None else self.limit // 5
        done = 0
        start_s = 0.0
        while self.limit > self.result.chunks:
            if not self.advance():
                break
            if not done and self.result.chunks >= warm:
                done, start_s = self.result.chunks, self.now
            self.dispatch()
        total = self.result
        steady = Result(chunks=total.chunks - done, batches=total.batches)
        steady.sizes, steady.seconds = total.sizes, self.now - start_s
        return steady

    def advance(self) -> bool:
        """Go to the next event."""
        share = 1.0
        if self.cpu and not self.setting.sleeps:
            share = min(1.0, self.setting.cores / len(self.cpu))
        cpu_s = self.now + (self.cpu[0][0] - self.work) / share if self.cpu else inf
        timer_s = self.timers[0][0] if self.timers else inf
        wake = self.rule.wake_at(self.now)
        wake_s = wake if wake is not None else inf
        when = min(cpu_s, timer_s, wake_s)
        if when == inf:
            return False
        self.work += (when - self.now) * share
        self.now = when
        if cpu_s == when:
            self.work = self.cpu[0][0]
            _, serial, number = heappop(self.cpu)
            self.executed(number, is_reset=bool(serial & 1))
        elif timer_s == when:
            heappop(self.timers)[2]()
        return True

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heappush(self.timers, (self.now + seconds, next(self.serial), action))

    def compute(self, number: int, seconds: float, *, is_reset: bool) -> None:
        heappush(self.cpu, (self.work + seconds, 2 * next(self.serial) + is_reset, number))

    def begin_episode(self, number: int, *, first: bool = False) -> None:
        lane, setting = self.lanes[number], self.setting
        if self.trials_left == 0:
            return
        self.trials_left -= 1
        # Drawn by trial: every rule meets the same trials, in whatever lane they come to run.
        trial = random.Random(self.seed * 1_000_033 + self.trials_left)
        lane.chunks_left = trial.randint(*setting.episode_chunks)
        lane.task = trial.randrange(setting.tasks)
        if first and setting.trials is None:
            lane.chunks_left = trial.randint(1, lane.chunks_left)
        self.compute(number, setting.reset_s * lane.rng.uniform(0.8, 1.2), is_reset=True)

    def executed(self, number: int, *, is_reset: bool) -> None:
        lane = self.lanes[number]
        if is_reset:
            self.rule.ready(number, lane.queue, self.now, None)
            return
        self.result.chunks += 1
        lane.chunks_left -= 1
        if lane.chunks_left == 0:
            self.rule.leave(number)
            self.begin_episode(number)
        else:
            self.rule.ready(number, lane.queue, self.now, self.now - lane.started)

    def dispatch(self) -> None:
        while (batch := self.rule.next_batch(self.now)) is not None:
            self.result.batches += 1
            self.result.sizes.append(len(batch.lanes))
            seconds = self.setting.latency(len(batch.lanes)) * self.setting.outlier(self.rng)
            self.after(seconds, lambda b=batch, s=seconds: self.answered(b, s))  # type: ignore[misc]

    def answered(self, batch: BatchPlan, seconds: float) -> None:
        self.rule.inferred(len(batch.lanes), seconds, self.now)
        kinds: dict[Hashable, list[int]] = {}
        for number in batch.lanes:
            lane = self.lanes[number]
            lane.started = self.now
            duration = self.setting.duration(lane.rng, lane.task, is_slow=lane.is_recording)
            self.compute(number, duration, is_reset=False)
            known = lane.is_recording and self.setting.slow_is_known
            kinds.setdefault((lane.task, known), []).append(number)
        for kind, lanes in kinds.items():
            self.rule.executing(lanes, kind, self.now)


class Lockstep:
    """One clock for all lanes and a full batch each time, as vectorised evaluation loops do it.

    With `holds`, lanes that end stand still until all have used up their chunk; then all that
    ended are reset, and a full batch is inferred. Without, a full batch is inferred whenever any
    lane has run out of actions, at any step, while everyone stands still.
    """

    STEPS = 16
    """Steps in a chunk."""

    def __init__(self, setting: Setting, seed: int, *, holds: bool) -> None:
        self.setting, self.holds = setting, holds
        self.rng = random.Random(seed)
        count = setting.lanes
        self.slow = round(count * setting.slow_share)
        self.tasks = [self.rng.randrange(setting.tasks) for _ in range(count)]
        self.left = [self.episode() if holds else self.rng.randint(1, 160) for _ in range(count)]
        self.queued = [0] * count
        self.step_s = [0.0] * count
        self.back_at = [0.0] * count
        self.now = 0.0
        self.steps = 0
        full = min(count, setting.max_batch)
        self.infer_s = ceil(ceil(count / full) / setting.concurrency) * setting.latency(full)

    def rate(self, chunks: int) -> float:
        while self.steps < chunks * self.STEPS:
            lanes = [n for n in range(self.setting.lanes) if self.back_at[n] <= self.now]
            moving = [n for n in lanes if self.left[n] > 0]
            if any(self.queued[n] == 0 for n in moving):
                self.infer(moving)
            self.step(moving)
            if not self.holds:
                for n in moving:
                    if self.left[n] == 0:
                        self.back_at[n] = self.now + self.setting.reset_s
                        self.left[n], self.queued[n] = self.episode(), 0
            elif all(self.queued[n] == 0 or self.left[n] == 0 for n in lanes):
                self.reset_all_that_ended()
        return self.steps / self.STEPS / self.now

    def infer(self, moving: Sequence[int]) -> None:
        self.now += self.infer_s * self.setting.outlier(self.rng)
        for n in moving:
            if self.queued[n] == 0:
                self.queued[n] = self.STEPS
                seconds = self.setting.duration(self.rng, self.tasks[n], is_slow=n < self.slow)
                self.step_s[n] = seconds / self.STEPS

    def step(self, moving: Sequence[int]) -> None:
        if not moving:
            self.now = min(when for when in self.back_at if when > self.now)
            return
        costs = [self.step_s[n] for n in moving]
        self.now += max(*costs, 0.0 if self.setting.sleeps else sum(costs) / self.setting.cores)
        self.steps += len(moving)
        for n in moving:
            self.left[n] -= 1
            self.queued[n] -= 1

    def reset_all_that_ended(self) -> None:
        ended = [n for n, left in enumerate(self.left) if left == 0]
        for n in ended:
            self.left[n], self.queued[n] = self.episode(), 0
        if ended:
            self.now += self.setting.reset_s

    def episode(self) -> int:
        # Not a multiple of the chunk: that lanes fall out of step is what this is about.
        shortest, longest = self.setting.episode_chunks
        return self.rng.randint(shortest * self.STEPS - 4, longest * self.STEPS - 4)
