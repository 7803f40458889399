"""LIBERO whose trials end at drawn lengths, for `headline.py`: the work of a policy that succeeds,
whatever the actions do. As a program it measures what a control step and two frames take.

    python benchmarks/libero/cut_lengths.py SUITE    # in an interpreter that has LIBERO
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from hocket.adapters.envs.libero import STEP_LIMITS, SUITES, Libero, LiberoConfig
from hocket.workers.env import gl

NAMES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
STARTS, MEAN = 50, 197
_SHAPE = (3.0, 2.0)
"""Of the beta distribution that shares of a suite's limit are drawn from."""


def lengths(seed: int, *, is_full: bool = False) -> dict[tuple[str, str, int], int]:
    """Steps of each of the 2,000 trials, by suite, task and start: drawn from a seed, with a mean
    of 197 over all of them and each suite's limit for the most; or that limit for all."""
    keys = [(suite, task, k) for suite in NAMES for task in SUITES[suite] for k in range(STARTS)]
    limits = np.array([STEP_LIMITS[suite] for suite, _, _ in keys])
    if is_full:
        return dict(zip(keys, limits.tolist(), strict=True))
    drawn = np.random.default_rng(seed).beta(*_SHAPE, len(keys)) * limits
    low, high = 0.0, 3.0
    for _ in range(60):
        scale = (low + high) / 2
        total = np.clip(np.rint(drawn * scale), 1, limits).sum()
        low, high = (scale, high) if total < MEAN * len(keys) else (low, scale)
    found = np.clip(np.rint(drawn * high), 1, limits).astype(int)
    for over in np.flatnonzero(found > 1)[: found.sum() - MEAN * len(keys)]:
        found[over] -= 1
    return dict(zip(keys, found.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutConfig(LiberoConfig):
    suite: str = "spatial"
    """spatial, object, goal or 10."""
    lengths_seed: int = 0
    """What trials' lengths are drawn from; -1 gives all the suite's limit."""
    tasks: int = 10
    """The first tasks of the suite alone."""


class CutLibero(Libero):
    """A suite of LIBERO's whose trial k ends after a drawn number of steps."""

    Config: ClassVar = CutConfig

    def __init__(self, argument: str, config: CutConfig) -> None:
        super().__init__(argument or config.suite, config)
        self._tasks = self._tasks[: config.tasks]
        seed = config.lengths_seed
        self._lengths = lengths(max(seed, 0), is_full=seed < 0)

    @staticmethod
    def require_data(argument: str) -> None:
        """Which suite's data is needed is among the settings."""

    def make(self, task: str) -> Any:
        from hocket.adapters.envs.libero.env import LiberoEnv

        steps = {k: n for (suite, name, k), n in self._lengths.items() if name == task}

        class CutEnv(LiberoEnv):
            def _begin(self, seed: int) -> None:
                self._left = 10**9  # the steps of rest are no steps of the trial
                super()._begin(seed)
                self._left = steps[seed % STARTS]

            def advance(self, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
                reward, _, _, info = super().advance(action)
                self._left -= 1
                return reward, False, self._left <= 0, {**info, "success": False}

        return CutEnv(self._suite, task, self._config)


def timed(call: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    """Print seconds of a step and of both frames, each alone, and of a reset."""
    gl.set_worker(0)
    suite = Libero(sys.argv[1], LiberoConfig())
    env = suite.make(suite.tasks()[0].name)
    env.use_cameras(())
    reset_s = timed(lambda: env.reset(seed=0), 3)
    moves = np.random.default_rng(0).uniform(-0.3, 0.3, (40, 7))
    rows = iter(moves)
    step_s = timed(lambda: env.advance(next(rows)), len(moves))
    env.use_cameras(env.camera_keys)
    env.observe()
    frames_s = timed(env.observe, 8)
    said = {"reset_s": reset_s, "step_s": step_s, "frames_s": frames_s}
    sys.stdout.write(json.dumps({**said, "renderer": env.facts.get("gl_renderer", "")}) + "\n")


if __name__ == "__main__":
    main()
