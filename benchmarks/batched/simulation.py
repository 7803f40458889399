"""Rows that share one step, in virtual time: the real scheduler and the real stepping rule against
what people do instead, on the same trials.

`any`        infers for all rows whenever any row has used up its chunk
`synced`     infers for all rows once all have used up theirs; those that wait are held under an
             action, which is a step that is not useful, though the episode's clock goes on in it
`paused`     as `synced`, but with a clock that stands still: synced, if it could suspend rows
`lockstep`   as `synced`, and a new round of episodes begins when the last one of a round has ended
`hocket`     infers for whoever is ready and steps whoever has an action
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil, inf, sqrt
from typing import Protocol

from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.workers.rows.stepping import StepRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Rows, what a step and an inference cost, and how long episodes are."""

    rows: int = 64
    chunk: int = 16
    step_s: float = 0.02
    base_s: float = 0.2
    row_s: float = 0.0
    lengths: tuple[int, int] = (60, 300)
    episodes: int = 640
    max_batch: int = 64
    reset_s: float = 0.0
    """Seconds of a reset, in which no row steps, of however many rows."""
    jitter: float = 0.03
    """Standard deviation of the log of what a step, or an inference, takes in virtual time."""
    seed: int = 0
    """Of the lengths of episodes, and of the jitter."""

    def infer_s(self, size: int) -> float:
        """Seconds for a batch."""
        return self.base_s + self.row_s * size

    def trials(self) -> list[int]:
        """The length of each episode, in the order in which they are begun."""
        rng = random.Random(self.seed)
        return [rng.randint(*self.lengths) for _ in range(self.episodes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of all trials."""

    seconds: float
    useful: int
    """Steps of episodes, of all rows."""
    inferred: int
    """Rows that the policy worked on."""
    calls: int
    held: int = 0
    """Steps of rows under an action that is meant to do nothing."""

    @property
    def rate(self) -> float:
        return self.useful / self.seconds


def limit(setting: Setting) -> float:
    """Useful row-steps a second that nobody can exceed: neither the rows, if every row had its
    chunk as soon as a policy that works on it alone could give it and its reset held up nobody
    else, nor the policy."""
    trials = setting.trials()
    chunks = ideal_inferences(setting)
    return sum(trials) / max(_rows_s(setting, trials), _policy_s(setting, sum(trials), chunks))


def held_share(setting: Setting) -> float:
    """About the share of the limit that a simulator can reach, in a long run, that steps no row
    while it resets some.

    With X seconds of steps and inferences in an episode and calls every T seconds of them, a row
    that has ended waits T / 2 on average, and every call of R seconds holds up the others for
    H = R - L, if an inference of L seconds goes on meanwhile. An episode takes
    (X + T / 2) (1 + H / T) + L, which is least for T = sqrt(2 X H).
    """
    trials = setting.trials()
    chunks, infer_s = ideal_inferences(setting), setting.infer_s(1)
    episode_s = (sum(trials) * setting.step_s + chunks * infer_s) / len(trials)
    held_s = max(0.0, setting.reset_s - infer_s)
    cycle_s = episode_s + infer_s + held_s / 2 + sqrt(2 * episode_s * held_s)
    return (episode_s + setting.reset_s) / cycle_s


def _rows_s(setting: Setting, trials: Sequence[int]) -> float:
    """Each row takes the next trial as soon as it is free, and never waits for another."""
    rows = [0.0] * min(setting.rows, len(trials))
    heapify(rows)
    for length in trials:
        chunks = ceil(length / setting.chunk)
        seconds = setting.reset_s + length * setting.step_s + chunks * setting.infer_s(1)
        heapreplace(rows, rows[0] + seconds)
    return max(rows)


def _policy_s(setting: Setting, steps: int, chunks: int) -> float:
    """One batch at a time, of the best mean size: that many chunks have to be inferred, and each
    row waits for its own. (Where an inference takes `a + b B`, sizes that differ cost more.)"""

    def seconds(batch: int) -> float:
        infer_s = setting.infer_s(batch)
        busy_s = steps * setting.step_s + chunks * infer_s + setting.episodes * setting.reset_s
        return max(chunks * infer_s / batch, busy_s / setting.rows)

    return min(seconds(batch) for batch in range(1, min(setting.rows, setting.max_batch) + 1))


def ideal_inferences(setting: Setting) -> int:
    """Rows to infer if each chunk is inferred once."""
    return sum(ceil(length / setting.chunk) for length in setting.trials())


class World(Protocol):
    """A simulator and a policy, as a plain loop drives them: what it does says how long it took."""

    def begin(self, rows: Sequence[int], trials: Sequence[int]) -> float:
        """These rows begin these trials."""
        ...

    def infer(self) -> float:
        """Chunks for all rows."""
        ...

    def step(self, left: Sequence[int]) -> float:
        """One step of all rows, which have so many actions of their chunks left."""
        ...


class Virtual:
    """Time with jitter, in which nothing happens."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._noise = random.Random(setting.seed + 1)

    def begin(self, rows: Sequence[int], trials: Sequence[int]) -> float:
        return self._setting.reset_s

    def infer(self) -> float:
        return self._jittered(self._setting.infer_s(self._setting.rows))

    def step(self, left: Sequence[int]) -> float:
        return self._jittered(self._setting.step_s)

    def _jittered(self, seconds: float) -> float:
        return seconds * self._noise.lognormvariate(0.0, self._setting.jitter)


def any_triggered(setting: Setting, world: World) -> Outcome:
    """Everybody is inferred whenever anybody needs a chunk."""
    return _rounds(setting, world, needs=any, is_lockstep=False)


def synced(setting: Setting, world: World) -> Outcome:
    """Everybody gets a new chunk when everybody needs one; held until then."""
    return _rounds(setting, world, needs=all, is_lockstep=False)


def paused(setting: Setting, world: World) -> Outcome:
    """`synced` on a simulator that it has not: whose rows stand still while they are held."""
    return _rounds(setting, world, needs=all, is_lockstep=False, is_paused=True)


def lockstep(setting: Setting, world: World) -> Outcome:
    """Rounds of episodes that begin and end together."""
    return _rounds(setting, world, needs=all, is_lockstep=True)


def _rounds(
    setting: Setting,
    world: World,
    *,
    needs: Callable[[Sequence[bool]], bool],
    is_lockstep: bool,
    is_paused: bool = False,
) -> Outcome:
    waiting = deque(enumerate(setting.trials()))
    left = [0] * setting.rows
    chunk = [0] * setting.rows
    seconds, useful, inferred, calls, held = 0.0, 0, 0, 0, 0
    while waiting or any(left):
        if not is_lockstep or not any(left):
            begun: dict[int, int] = {}
            for row in range(setting.rows):
                if not left[row] and waiting:
                    begun[row], left[row] = waiting.popleft()
                    chunk[row] = 0
            if begun:
                seconds += world.begin([*begun], [*begun.values()])
        live = [row for row in range(setting.rows) if left[row]]
        if needs([chunk[row] == 0 for row in live]):
            seconds += world.infer()
            inferred += setting.rows
            calls += 1
            # All are inferred, but a row that is in the middle of a chunk stays with it.
            chunk = [count or setting.chunk for count in chunk]
        seconds += world.step(chunk)
        for row in live:
            if chunk[row]:
                chunk[row] -= 1
                left[row] -= 1
                useful += 1
            else:
                # Held under an action: the simulator steps all rows, and its clocks go on.
                held += 1
                left[row] -= not is_paused
    return Outcome(seconds=seconds, useful=useful, inferred=inferred, calls=calls, held=held)


class Hocket:
    """The scheduler and the stepping rule, with a policy and a simulator that only take time."""

    def __init__(self, setting: Setting, *, holds: bool = True) -> None:
        self._setting = setting
        self._noise = random.Random(setting.seed + 1)
        self._holds = holds
        self._rule = StepRule()
        self._scheduler = Scheduler(
            SchedulerConfig(cores=setting.rows, max_batch=setting.max_batch, concurrency=1)
        )
        sizes = [1 << power for power in range(setting.max_batch.bit_length())]
        self._scheduler.seed_latency({size: setting.infer_s(size) for size in sizes})
        self._waiting = deque(setting.trials())
        self._left = [0] * setting.rows
        self._chunk = [0] * setting.rows
        self._began = [0.0] * setting.rows
        self._flying: tuple[float, tuple[int, ...]] | None = None
        self._step_ends = inf
        self._stepping: list[int] = []
        self._took_s = self._step_s = 0.0
        self.useful = self.inferred = self.calls = 0

    def run(self) -> Outcome:
        """All trials, to the last."""
        now = 0.0
        for row in range(self._setting.rows):
            self._begin(row, now)
        while any(self._left):
            self._infer(now)
            hold_s = self._step(now)
            now = min(
                self._step_ends,
                self._flying[0] if self._flying else inf,
                now + hold_s if hold_s else inf,
                self._wake(now),
            )
            self._arrive(now)
        return Outcome(seconds=now, useful=self.useful, inferred=self.inferred, calls=self.calls)

    def _jitter(self) -> float:
        return self._noise.lognormvariate(0.0, self._setting.jitter)

    def _wake(self, now: float) -> float:
        at = self._scheduler.wake_at(now)
        return inf if at is None or self._flying else max(at, now + 1e-6)

    def _begin(self, row: int, now: float) -> None:
        if self._waiting:
            self._left[row] = self._waiting.popleft()
            self._scheduler.ready(row, "rows", now, None)

    def _infer(self, now: float) -> None:
        self._scheduler.share_step(self._rule.step_s)
        plan = self._scheduler.next_batch(now) if self._flying is None else None
        if plan is not None:
            usual_s = self._setting.infer_s(len(plan.lanes))
            self._took_s = usual_s * self._jitter()
            self._flying = (now + self._took_s, plan.lanes)
            self._rule.expect(len(plan.lanes), now + usual_s)
            self.inferred += len(plan.lanes)
            self.calls += 1

    def _step(self, now: float) -> float:
        """Begin a step, unless one is under way or it is held: then for how long."""
        active = [row for row, count in enumerate(self._chunk) if count]
        if self._step_ends < inf or not active:
            return 0.0
        hold_s = self._rule.hold_s(len(active), now) if self._holds else 0.0
        if not hold_s:
            self._step_s = self._setting.step_s * self._jitter()
            self._step_ends, self._stepping = now + self._step_s, active
        return hold_s

    def _arrive(self, now: float) -> None:
        if now >= self._step_ends:
            self._step_ends = inf
            self._rule.stepped(self._step_s)
            for row in self._stepping:
                self._advance(row, now)
        if self._flying and now >= self._flying[0]:
            lanes = self._flying[1]
            self._scheduler.inferred(len(lanes), self._took_s, now)
            self._scheduler.executing(lanes, "chunk", now)
            self._rule.came(len(lanes))
            for row in lanes:
                self._chunk[row], self._began[row] = self._setting.chunk, now
            self._flying = None

    def _advance(self, row: int, now: float) -> None:
        self._chunk[row] -= 1
        self._left[row] -= 1
        self.useful += 1
        if not self._left[row]:
            self._chunk[row] = 0
            self._scheduler.leave(row)
            self._begin(row, now)
        elif not self._chunk[row]:
            self._scheduler.ready(row, "rows", now, now - self._began[row])


SETTINGS: dict[str, Setting] = {
    "64 rows, 200 ms": Setting(base_s=0.2),
    "64 rows, 700 ms": Setting(base_s=0.7),
    "64 rows, 20 ms": Setting(base_s=0.02),
    "64 rows, 50 ms": Setting(base_s=0.05),
    "64 rows, 170 ms": Setting(base_s=0.17),
    "64 rows, 24 ms + 2.75 B, 200 ms for 64": Setting(base_s=0.024, row_s=0.00275),
    "64 rows, 84 ms + 9.6 B, 700 ms for 64": Setting(base_s=0.084, row_s=0.00963),
    "64 rows, 75 + 8.5 B ms": Setting(base_s=0.075, row_s=0.0085),
    "64 rows, 24 + 8 B ms": Setting(base_s=0.024, row_s=0.008),
    "16 rows, 200 ms": Setting(rows=16, episodes=160, base_s=0.2),
    "256 rows, 200 ms, 5 ms steps": Setting(
        rows=256, episodes=1500, base_s=0.2, step_s=0.005, max_batch=256
    ),
    "64 rows, chunks of 4, 60 ms": Setting(chunk=4, base_s=0.06),
    "64 rows, chunks of 32, 200 ms": Setting(chunk=32, base_s=0.2),
    "64 rows, 100 ms steps, 50 ms": Setting(step_s=0.1, base_s=0.05),
    "64 rows, 100 ms steps, 300 ms, chunks of 4": Setting(step_s=0.1, base_s=0.3, chunk=4),
    "64 rows, short episodes, 200 ms": Setting(base_s=0.2, lengths=(10, 40), episodes=2000),
    "64 rows, short episodes, 50 ms": Setting(base_s=0.05, lengths=(10, 40), episodes=2000),
}
