"""What the machinery costs: an env and a policy that do nothing, chunks of 16 actions.

Prints microseconds of the parent's CPU per chunk (engine, fleet, scheduler, inference thread) and
env steps per second, beside gymnasium's AsyncVectorEnv and, where it is installed, EnvPool.

    python benchmarks/engine/overhead.py [--json FILE] [--quick]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hocket
from hocket.core import events
from nothing import LENGTH, NoPolicy, Nothing

CHUNK = 16
LIMIT_US = {0: 60.0, 224: 100.0}


def run_hocket(lanes: int, pixels: int, chunks: int) -> dict[str, Any]:
    episodes = max(lanes, round(chunks * CHUNK / LENGTH))
    env_config = {"pixels": pixels}
    common = {"env": "nothing:make", "policy": NoPolicy(CHUNK), "env_config": env_config}
    clock = Clock()
    report = hocket.evaluate(lanes=lanes, episodes=episodes, readers=[clock], **common)
    done = report.throughput
    return {
        "parent_us_per_chunk": 1e6 * clock.cpu_s / clock.chunks,
        "steps_per_s": clock.steps / clock.wall_s,
        "mean_batch": done.mean_batch,
        "chunks": clock.chunks,
    }


class Clock:
    """Counts the parent's CPU once every lane has begun and until the first trials run out, so that
    neither starting workers nor the run's tail is taken for the cost of a chunk. It is one of the
    parent's readers itself, so it looks at the clock twice and no more."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.chunks = self.steps = 0
        self._lanes = self._planned = self._begun = 0
        self._is_counting = False

    def on(self, event: events.Event) -> None:
        if isinstance(event, events.ChunksExecuted):
            if self._is_counting:
                self.chunks += len(event.lanes)
                self.steps += sum(event.steps)
            elif self._lanes <= self._begun < self._planned:
                self._is_counting = True
                self._look(-1)
        elif isinstance(event, events.AttemptsBegan):
            self._begun += len(event.lanes)
            if self._is_counting and self._begun >= self._planned:
                self._is_counting = False
                self._look(1)
        elif isinstance(event, events.RunStarted):
            self._lanes, self._planned = event.lanes, len(event.trials)

    def _look(self, sign: int) -> None:
        self.cpu_s += sign * time.process_time()
        self.wall_s += sign * time.perf_counter()

    def close(self) -> None: ...


def run_async_vector(lanes: int, pixels: int, steps: int) -> dict[str, Any]:
    makers = [partial(Nothing, pixels=pixels) for _ in range(lanes)]
    envs = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True, context="fork")
    try:
        envs.reset(seed=0)
        actions = np.zeros((lanes, 4), np.float32)
        for _ in range(5):
            envs.step(actions)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(steps):
            envs.step(actions)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    finally:
        envs.close()
    return {
        "parent_us_per_chunk": 1e6 * cpu / (steps * lanes) * CHUNK,
        "steps_per_s": steps * lanes / wall,
    }


def run_envpool(lanes: int, steps: int) -> dict[str, Any]:
    import envpool

    envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=lanes)
    envs.reset()
    actions = np.zeros(lanes, np.int64)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        envs.step(actions)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "parent_us_per_chunk": 1e6 * cpu / (steps * lanes) * CHUNK,
        "steps_per_s": steps * lanes / wall,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer chunks")
    arguments = parser.parse_args()
    budget = 4_000 if arguments.quick else 20_000
    settings = [(8, 0), (64, 0), (256, 0), (8, 224), (64, 224)]
    rows = []
    print(f"{'lanes':>6} {'image':>6} {'side':<15} {'parent us/chunk':>16} {'env steps/s':>12}")
    for lanes, pixels in settings:
        sides = {"hocket": run_hocket(lanes, pixels, max(budget, 60 * lanes))}
        vector_steps = max(20, (600 if pixels else 4_000) // lanes)
        sides["AsyncVectorEnv"] = run_async_vector(lanes, pixels, vector_steps)
        if importlib.util.find_spec("envpool") and not pixels:
            sides["EnvPool CartPole"] = run_envpool(lanes, 2_000)
        for side, figures in sides.items():
            rows.append({"lanes": lanes, "image": pixels, "side": side, **figures})
            print(
                f"{lanes:>6} {pixels:>6} {side:<15} {figures['parent_us_per_chunk']:>16.1f} "
                f"{figures['steps_per_s']:>12,.0f}"
            )
        ratio = sides["hocket"]["steps_per_s"] / sides["AsyncVectorEnv"]["steps_per_s"]
        print(f"{'':>6} {'':>6} hocket / AsyncVectorEnv: {ratio:.1f}x env steps/s")
    failed = [
        row
        for row in rows
        if row["side"] == "hocket" and row["parent_us_per_chunk"] > LIMIT_US[row["image"]]
    ]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    limits = f"{LIMIT_US[0]:.0f} us, and {LIMIT_US[224]:.0f} us with an image"
    print(f"limit {limits}: {'NOT MET' if failed else 'met'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
