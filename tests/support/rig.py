"""Plays trials through a real fleet, with actions that follow from what was observed."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.core.data import Array, Ref, Trial
from hocket.core.specs import EnvSpec
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.local.runtime import LocalRuntime
from hocket.workers.notices import (
    LaneFailed,
    LanesBegun,
    LaneSealed,
    LanesExecuted,
    LanesRecycled,
    LanesUp,
    Notice,
)
from support.processes import DEADLINE_S

N = TypeVar("N", bound=Notice)


class Result(NamedTuple):
    """What came of a trial."""

    rewards: tuple[float, ...]
    ends: int


class KeptRuntime(LocalRuntime):
    """Processes for one fleet after another, forked from an interpreter that is started once: its
    start takes most of a short test."""

    def close(self) -> None:
        """Leave the interpreter: fleets end their workers before they close their runtime."""

    def end(self) -> None:
        super().close()


_kept: KeptRuntime | None = None


@contextlib.contextmanager
def kept_runtime() -> Iterator[None]:
    """Rigs of plain toys that ask for no runtime of their own share one."""
    global _kept
    _kept = KeptRuntime()
    try:
        yield
    finally:
        _kept.end()
        _kept = None


class Rig:
    """A fleet with a memory of all that it said."""

    def __init__(
        self,
        *,
        lanes: int = 1,
        toy: dict[str, Any] | None = None,
        suite: Ref | None = None,
        runtime: Runtime | None = None,
        fleet: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        self.suite = suite or Ref(name="toy", config=toy or {})
        self.spec = WorkerSpec(suites={"toy": self.suite}, **spec)
        config = FleetConfig(lanes=lanes, **({"start_timeout_s": DEADLINE_S} | (fleet or {})))
        self.config = config
        # What an interpreter finds depends on the folder and the path that it was started with.
        is_plain = suite is None and "python" not in spec and "sinks" not in spec
        if runtime is None:
            runtime = _kept if is_plain and _kept is not None else LocalRuntime()
        self.fleet = Fleet(runtime, self.spec, config)
        self.heard: list[Notice] = []
        self._unread: deque[Notice] = deque()
        self.specs: list[EnvSpec] = []
        self.action_size = 4

    def __enter__(self) -> Rig:
        self.fleet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()

    def hear(self, timeout_s: float = 1.0) -> list[Notice]:
        """One poll."""
        found = self.fleet.poll(timeout_s)
        self.heard += found
        return found

    def wait(self, kind: type[N], where: Callable[[N], bool] = lambda _: True) -> N:
        """The next notice of a kind."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            while self._unread:
                notice = self._unread.popleft()
                if isinstance(notice, kind) and where(notice):
                    return notice
            self._unread.extend(self.hear())
        raise AssertionError(f"No {kind.__name__} came; heard {self.heard}")

    def begin(
        self,
        lane: int = 0,
        seed: int = 0,
        *,
        task: str = "count",
        attempt: int = 0,
        max_steps: int | None = None,
        final: bool = False,
    ) -> Trial:
        """Reset a lane."""
        trial = Trial(suite="toy", task=task, seed=seed)
        self.fleet.begin(
            [lane], [attempt], [trial], [max_steps], final_observation=final, record=[{}]
        )
        return trial

    def execute(self, actions: Array, *, lane: int = 0, chunk: int = 0, attempt: int = 0) -> None:
        """Send a chunk."""
        self.fleet.execute([lane], [attempt], [chunk], [actions])

    def play(
        self,
        trials: Sequence[Trial],
        *,
        chunk: int = 7,
        attempts: int = 3,
        lanes: int = 1,
    ) -> dict[str, Result]:
        """Run trials to their ends on lanes as they come up, again where a fault loses them."""
        waiting = [(trial, 0) for trial in trials]
        running: dict[int, tuple[Trial, int, list[float]]] = {}
        results: dict[str, Result] = {}
        free: set[int] = set()
        sealed = 0
        deadline = time.monotonic() + DEADLINE_S
        while (len(results) < len(trials) or sealed < len(trials)) and time.monotonic() < deadline:
            for lane in sorted(free) if waiting else ():
                if waiting:
                    trial, attempt = waiting.pop(0)
                    free.discard(lane)
                    running[lane] = (trial, attempt, [])
                    self.fleet.begin(
                        [lane], [attempt], [trial], [None], final_observation=False, record=[{}]
                    )
            for notice in self.hear():
                if isinstance(notice, LanesUp):
                    free.update(notice.lanes)
                elif isinstance(notice, LanesRecycled):
                    free.difference_update(notice.lanes)
                elif isinstance(notice, LanesBegun):
                    for lane in notice.lanes:
                        self.execute(self.act(lane, chunk), lane=lane, attempt=running[lane][1])
                elif isinstance(notice, LanesExecuted):
                    for row, lane in enumerate(notice.lanes):
                        trial, attempt, rewards = running[lane]
                        rewards += notice.rewards[row].tolist()
                        if notice.ends[row]:
                            results[trial.id] = Result(tuple(rewards), notice.ends[row])
                            del running[lane]
                            free.add(lane)
                        else:
                            self.execute(
                                self.act(lane, chunk),
                                lane=lane,
                                chunk=notice.chunks[row] + 1,
                                attempt=attempt,
                            )
                elif isinstance(notice, LaneSealed):
                    sealed += 1
                elif isinstance(notice, LaneFailed):
                    trial, attempt, _ = running.pop(notice.lane)
                    assert attempt + 1 < attempts, notice
                    waiting.append((trial, attempt + 1))
                    if not notice.gone:
                        free.add(notice.lane)
        assert len(results) == len(trials), self.heard
        assert sealed == len(trials), self.heard
        return results

    def act(self, lane: int, count: int) -> Array:
        """A chunk that depends on every number observed but for the pictures."""
        arrays = self.fleet.arrays(lane)
        total = sum(
            float(np.abs(value).sum(dtype=np.float64))
            for key, value in sorted(arrays.items())
            if "image" not in key
        )
        steps = np.arange(count * self.action_size, dtype=np.float64)
        return np.sin(total + steps).reshape(count, self.action_size)

    def failures(self) -> list[LaneFailed]:
        """Heard so far."""
        return [notice for notice in self.heard if isinstance(notice, LaneFailed)]


def trials(count: int, task: str = "count") -> list[Trial]:
    """So many, by seed."""
    return [Trial(suite="toy", task=task, seed=seed) for seed in range(count)]
