"""A discrete-event simulation of lanes, cores and a policy, in virtual time.

It drives anything with the scheduler's methods: the real `Scheduler`, or a fixed rule that people
use instead. Executing lanes share the cores equally (processor sharing). The parent handles what
comes one by one: each row that is ready and each batch that leaves takes its time, so that many
small batches cost what they do in a run. What a rule is not told in a run it is not told here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from typing import Protocol

from families import Setting
from hocket.engine.batches import HANDLING_ROW_S, HANDLING_S
from hocket.engine.scheduling.estimates import Latency
from hocket.engine.scheduling.scheduler import BatchPlan, Patience

HICCUP_S = 3.0
NOISE = 0.02
"""Standard deviation of the log of an inference's latency."""


class Rule(Protocol):
    """The scheduler's side that the simulation needs."""

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None: ...
    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None: ...
    def leave(self, lane: int) -> None: ...
    def begins(self, lane: int, now: float) -> None: ...
    def seed_latency(self, points: Mapping[int, float]) -> None: ...
    def next_batch(self, now: float) -> BatchPlan | None: ...
    def inferred(self, size: int, seconds: float, now: float) -> None: ...
    def wake_at(self, now: float) -> float | None: ...


class Static:
    """A fixed pair: a batch leaves with `batch` rows, or when the oldest waited `wait_s`."""

    def __init__(self, batch: int, wait_s: float, concurrency: int) -> None:
        self.batch, self.wait_s, self.free = batch, wait_s, concurrency
        self.latency = Latency()
        self.queues: dict[Hashable, dict[int, float]] = {}
        self.queue_of: dict[int, Hashable] = {}

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        pass

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        self.queue_of[lane] = queue
        self.queues.setdefault(queue, {})[lane] = now

    def begins(self, lane: int, now: float) -> None:
        pass

    def share_step(self, seconds: float | None) -> None:
        pass

    def patience(self, now: float, longest: float) -> Patience:
        at = self.wake_at(now)
        return Patience(longest if at is None else min(max(0.0, at - now), longest))

    def leave(self, lane: int) -> None:
        if lane in self.queue_of:
            self.queues[self.queue_of[lane]].pop(lane, None)

    def seed_latency(self, points: Mapping[int, float]) -> None:
        pass

    def next_batch(self, now: float) -> BatchPlan | None:
        if not self.free:
            return None
        chosen, since = None, inf
        for key, ready in self.queues.items():
            if ready:
                oldest = next(iter(ready.values()))
                full = len(ready) >= self.batch or oldest + self.wait_s <= now + 1e-12
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
        if not self.free:
            return None
        times = [next(iter(r.values())) for r in self.queues.values() if r]
        return max(now, min(times) + self.wait_s) if times else None


class _Lane:
    __slots__ = ("chunks_left", "queue", "rng", "started", "task")

    def __init__(self, number: int, setting: Setting, seed: int) -> None:
        # A lane's own stream, so that every rule meets the same lane, whatever its order.
        self.rng = random.Random(seed * 1_000_003 + number)
        self.queue = number % setting.signatures
        self.task = 0
        self.chunks_left = 0
        self.started = 0.0

    def duration(self, setting: Setting) -> float:
        """Seconds of the next chunk, alone on the machine."""
        if setting.pareto:
            mean = setting.pareto / (setting.pareto - 1)
            seconds = min(50.0, self.rng.paretovariate(setting.pareto) / mean)
        else:
            seconds = self.rng.lognormvariate(-(setting.sigma**2) / 2, setting.sigma)
        return setting.execute_s * seconds * (setting.apart if self.task else 1.0)


class Simulation:
    """One run of one rule in one setting, of so many chunks, or of the setting's trials."""

    def __init__(self, setting: Setting, rule: Rule, seed: int, chunks: int) -> None:
        self.setting, self.rule, self.seed = setting, rule, seed
        self.limit = chunks if setting.trials is None else 1 << 30
        self.rng = random.Random(seed)
        self.lanes = [_Lane(n, setting, seed) for n in range(setting.lanes)]
        self.trials_left = setting.trials if setting.trials is not None else 1 << 60
        self.now = 0.0
        self.work = 0.0
        """Core time that each executing lane has had since the start."""
        self.parent = 0.0
        """Until when the parent is busy."""
        self.cpu: list[tuple[float, int, int]] = []
        self.gpu: list[tuple[float, int, Callable[[], None]]] = []
        """What wants a GPU that inferences and lanes share, by when it will have had enough."""
        self.had = 0.0
        """Seconds of it that each of them has had since the start."""
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = count()
        self.chunks = 0
        self.sizes: list[int] = []
        self.had_hiccup = False

    def run(self) -> float:
        """Chunks per second."""
        setting = self.setting
        self.rule.seed_latency(setting.timed())
        for number in range(setting.lanes):
            self.begin(number, first=True)
        # The beginning is not what a long run is like; a run with an end counts whole.
        warm = 0 if setting.trials is not None else self.limit // 10
        start: tuple[int, float] | None = None
        while self.chunks < self.limit and self.advance():
            if start is None and self.chunks >= warm:
                start = (self.chunks, self.now)
            self.dispatch()
        assert start is not None
        return (self.chunks - start[0]) / max(1e-9, self.now - start[1])

    def advance(self) -> bool:
        """Go to the next event; false where there is none."""
        share = min(1.0, self.setting.cores / len(self.cpu)) if self.cpu else 1.0
        cpu_s = self.now + (self.cpu[0][0] - self.work) / share if self.cpu else inf
        slice_ = self.slice() if self.gpu else 0.0
        gpu_s = self.now + (self.gpu[0][0] - self.had) / slice_ if self.gpu else inf
        timer_s = self.timers[0][0] if self.timers else inf
        wake = self.rule.wake_at(self.now)
        when = min(cpu_s, gpu_s, timer_s, wake if wake is not None else inf)
        if when == inf:
            return False
        self.work += (when - self.now) * share
        self.had += (when - self.now) * slice_
        self.now = when
        if cpu_s == when:
            self.work = self.cpu[0][0]
            _, serial, number = heappop(self.cpu)
            self.rendered(number, is_reset=bool(serial & 1))
        elif gpu_s == when:
            self.had = self.gpu[0][0]
            heappop(self.gpu)[2]()
        elif timer_s == when:
            heappop(self.timers)[2]()
        return True

    def slice(self) -> float:
        """How fast each that wants the shared GPU gets on."""
        if self.setting.sharing == "slices":
            return 1.0 / len(self.gpu)
        return 1.0 / (1.0 + self.setting.beside * len(self.cpu))

    def share(self, seconds: float, action: Callable[[], None]) -> None:
        heappush(self.gpu, (self.had + seconds, next(self.serial), action))

    def rendered(self, number: int, *, is_reset: bool) -> None:
        """A lane has stepped; where it renders on the policy's GPU it looks now."""
        if self.setting.sharing == "slices":
            self.share(self.setting.beside, partial(self.told, number, is_reset=is_reset))
        else:
            self.told(number, is_reset=is_reset)

    def told(self, number: int, *, is_reset: bool) -> None:
        self.parent = max(self.parent, self.now) + HANDLING_ROW_S
        self.at(self.parent, partial(self.executed, number, is_reset=is_reset))

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self.timers, (when, next(self.serial), action))

    def compute(self, number: int, seconds: float, *, is_reset: bool) -> None:
        heappush(self.cpu, (self.work + seconds, 2 * next(self.serial) + is_reset, number))

    def begin(self, number: int, *, first: bool = False) -> None:
        lane, setting = self.lanes[number], self.setting
        if self.trials_left == 0:
            return
        self.trials_left -= 1
        # Drawn by trial: every rule meets the same trials, in whatever lane they come to run.
        trial = random.Random(self.seed * 1_000_033 + self.trials_left)
        lane.chunks_left = trial.randint(*setting.episode)
        lane.task = trial.randrange(2) if setting.apart > 1 else 0
        if first and setting.trials is None:
            lane.chunks_left = trial.randint(1, lane.chunks_left)
        self.rule.begins(number, self.now)
        self.compute(number, setting.reset_s * lane.rng.uniform(0.8, 1.2), is_reset=True)

    def executed(self, number: int, *, is_reset: bool) -> None:
        lane = self.lanes[number]
        if is_reset:
            self.rule.ready(number, lane.queue, self.now, None)
            return
        self.chunks += 1
        lane.chunks_left -= 1
        if lane.chunks_left <= 0:
            self.rule.leave(number)
            self.begin(number)
        else:
            self.rule.ready(number, lane.queue, self.now, self.now - lane.started)

    def dispatch(self) -> None:
        while (plan := self.rule.next_batch(self.now)) is not None:
            size = len(plan.lanes)
            self.sizes.append(size)
            done = 0.0 if self.setting.trials is not None else self.chunks / self.limit
            seconds = self.setting.latency(size) * self.setting.scale(done)
            if self.setting.drift == "hiccup" and not self.had_hiccup and done > 0.3:
                self.had_hiccup = True
                seconds += HICCUP_S
            seconds *= self.rng.lognormvariate(0.0, NOISE)
            self.parent = max(self.parent, self.now) + HANDLING_S
            seconds += self.parent - self.now
            answered = partial(self.answered, plan.lanes, self.now)
            if self.setting.sharing in ("slowed", "slices"):
                self.share(seconds, answered)
            else:
                if self.setting.sharing:
                    seconds *= 1.0 + self.setting.beside * len(self.cpu)
                self.at(self.now + seconds, answered)

    def answered(self, lanes: Sequence[int], began: float) -> None:
        self.rule.inferred(len(lanes), self.now - began, self.now)
        kinds: dict[int, list[int]] = {}
        for number in lanes:
            lane = self.lanes[number]
            lane.started = self.now
            self.compute(number, lane.duration(self.setting), is_reset=False)
            kinds.setdefault(lane.task, []).append(number)
        for kind, members in kinds.items():
            self.rule.executing(members, kind, self.now)
