"""How much faster lanes are that go on while the policy thinks, beside the limit.

The policy takes L ms for any batch, an env 10 ms a step, and both sleep, so that two cores host 32
lanes. The delay is L by the env's clock: d = L / 10 ms. A cycle can take no less than
max(L, d steps) + (s - d) steps; with the world paused it takes L + s steps. Both are run in turns.
Each lane has one long episode, whose first chunk nothing can overlap; rates are of the middle of a
run, and the limit is by what steps and inferences really took: on a busy machine a sleep of 10 ms
takes more.

    python benchmarks/realtime/throughput.py [--repeats 3] [--lanes 8 32] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import hocket
from hocket.core import events
from hocket.core.data import Batch
from hocket.core.specs import PolicySpec

STEP_S, LENGTH = 0.01, 640
CASES = [(0.08, 8), (0.04, 8), (0.16, 16), (0.08, 16)]
"""Seconds of an inference, and steps between two decisions."""


class Sleeper(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._left = LENGTH
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        time.sleep(STEP_S)
        self._left -= 1
        return np.zeros(4, np.float32), 0.0, self._left <= 0, False, {}


class Thinker:
    def __init__(self, seconds: float, replan: int) -> None:
        self.spec = PolicySpec(chunk_length=2 * replan, action_size=2, replan=replan, max_batch=64)
        self._seconds = seconds

    def infer(self, batch: Batch) -> Any:
        time.sleep(self._seconds)
        return np.zeros((batch.size, self.spec.chunk_length, 2))

    def close(self) -> None: ...


class Rate:
    """Counts steps in the middle of a run's time."""

    def __init__(self) -> None:
        self._told: list[tuple[float, int]] = []
        self._steps, self._busy_s = 0, 0.0
        self._infer_s: list[float] = []

    def on(self, event: events.Event) -> None:
        if isinstance(event, events.ChunksExecuted):
            self._told.append((event.time, sum(event.steps)))
            self._steps += sum(event.steps)
            self._busy_s += sum(event.busy)
        elif isinstance(event, events.BatchInferred):
            self._infer_s.append(event.ended - event.began)

    def close(self) -> None: ...

    def steps_per_s(self) -> float:
        first, last = self._told[0][0], self._told[-1][0]
        low, high = first + 0.2 * (last - first), first + 0.8 * (last - first)
        return sum(steps for at, steps in self._told if low < at <= high) / (high - low)

    def limit(self, lanes: int, replan: int, delay: int) -> float:
        """Steps per second, if no time were lost."""
        step_s = self._busy_s / self._steps
        cycle_s = max(statistics.mean(self._infer_s), delay * step_s) + (replan - delay) * step_s
        return lanes * replan / cycle_s


def measure(lanes: int, infer_s: float, replan: int, *, delay: int) -> tuple[float, float]:
    """Steps per second, and the share of the limit that this is."""
    rate = Rate()
    how = {"method": "naive", "delay": delay} if delay else {}
    hocket.evaluate(
        env="throughput:Sleeper",
        policy=Thinker(infer_s, replan),
        lanes=lanes,
        episodes=lanes,
        readers=[rate],
        **how,
    )
    found = rate.steps_per_s()
    return found, found / rate.limit(lanes, replan, delay)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lanes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for lanes in given.lanes:
        for infer_s, replan in CASES:
            delay = round(infer_s / STEP_S)
            runs: dict[int, list[tuple[float, float]]] = {0: [], delay: []}
            for _ in range(given.repeats):
                for each, found in runs.items():
                    found.append(measure(lanes, infer_s, replan, delay=each))
            (paused, share_paused), (delayed, share) = (
                [statistics.median(column) for column in zip(*found, strict=True)]
                for found in runs.values()
            )
            row = {
                "lanes": lanes,
                "infer_ms": 1000 * infer_s,
                "s": replan,
                "d": delay,
                "paused": paused,
                "delayed": delayed,
                "of_limit": share,
                "paused_of_limit": share_paused,
                "gain": delayed / paused,
            }
            rows.append(row)
            print(
                f"{lanes} lanes, L {1000 * infer_s:.0f} ms, s {replan}, d {delay}: "
                f"{paused:.0f} -> {delayed:.0f} steps/s, {delayed / paused:.2f} times; "
                f"{share:.3f} of the limit, paused {share_paused:.3f} of its own",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
