"""Cameras: MetaWorld pick-place, one 224 px camera, chunks of 16 actions, 8 lanes.

The other side is what evaluation loops of the field do: gymnasium's AsyncVectorEnv in lockstep, an
image rendered at every step, one action queue shared by all envs, the next batch of episodes only
when the slowest has ended. Both sides run the same trials with the same policy, one BLAS thread per
process and the same render flags; each trial's return is compared.

    python benchmarks/engine/cameras.py [--trials 24] [--lanes 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hocket
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.adapters.policies.reference import Reference
from hocket.core.data import Array, Batch, Row, Trial, noise_seed

TASK, PIXELS, CHUNK = "pick-place-v3", 224, 16
CAMERA = "observation/image"


class Looking(Reference):
    """The reference policy, made to ask for a camera as a vision policy does."""

    def __init__(self) -> None:
        super().__init__("", Reference.Config())
        self.spec = dataclasses.replace(self.spec, inputs=None, cameras=(CAMERA,))
        self.frames = 0

    def infer(self, batch: Batch) -> hocket.Actions:
        assert batch.arrays[CAMERA].shape[1:] == (PIXELS, PIXELS, 3)
        self.frames += len(batch.rows)
        return super().infer(batch)


def run_hocket(trials: int, lanes: int) -> tuple[list[float], list[int], float]:
    report = hocket.evaluate(
        env=f"metaworld:{TASK}",
        policy=Looking(),
        episodes=trials,
        lanes=lanes,
        env_config={"size": PIXELS},
    )
    returns = [episode.total_reward for episode in report.episodes]
    return returns, [episode.steps for episode in report.episodes], report.throughput.wall_s


class Frozen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An ended episode waits for the slowest: it is neither stepped nor rendered again."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._last: tuple[Any, ...] | None = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._last = None
        return self.env.reset(**kwargs)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._last is None:
            observation, reward, terminated, truncated, info = self.env.step(action)
            if not (terminated or truncated or info["success"]):
                return observation, float(reward), False, False, {"ended": False}
            self._last = (observation, 0.0, False, False, {"ended": True})
            return observation, float(reward), False, False, {"ended": True}
        return self._last  # type: ignore[return-value]


def make_env() -> Frozen:
    MetaWorld.prepare_worker(0)
    suite = MetaWorld(TASK, MetaWorld.Config(size=PIXELS))
    return Frozen(suite.make(TASK))


def row(seed: int, chunk: int) -> Row:
    trial = Trial(suite=f"metaworld:{TASK}", task=TASK, seed=seed)
    return Row(
        trial=trial,
        attempt=0,
        chunk=chunk,
        noise_seed=noise_seed(trial, chunk),
        prompt="",
        session="",
    )


def run_lockstep(trials: int, lanes: int) -> tuple[list[float], list[int], float]:
    envs = gymnasium.vector.AsyncVectorEnv([partial(make_env)] * lanes, context="spawn")
    began: list[float] = []
    try:
        returns, lengths = lockstep(envs, trials, lambda: began.append(time.perf_counter()))
        wall_s = time.perf_counter() - began[0]
    finally:
        envs.close()
    return returns, lengths, wall_s


def lockstep(envs: Any, trials: int, started: Callable[[], None]) -> tuple[list[float], list[int]]:
    """Returns and lengths of the trials in a vector env; `started` is called after each reset, for
    neither side's clock runs while its envs are built and first reset."""
    policy, limit, lanes = Looking(), 500, envs.num_envs
    returns, lengths = [0.0] * trials, [0] * trials
    for first in range(0, trials, lanes):
        seeds = list(range(first, min(first + lanes, trials)))
        padded = seeds + [seeds[-1]] * (lanes - len(seeds))
        observation, _ = envs.reset(seed=padded)
        started()
        done = np.zeros(lanes, bool)
        queue: list[Array] = []
        chunk = 0
        for _ in range(limit):
            if not queue:
                rows = tuple(row(seed, chunk) for seed in padded)
                answer = policy.infer(Batch(arrays=observation, rows=rows))
                queue = list(np.swapaxes(answer.values, 0, 1))
                chunk += 1
            observation, rewards, _, _, infos = envs.step(queue.pop(0))
            for lane, seed in enumerate(seeds):
                if not done[lane]:
                    returns[seed] += float(rewards[lane])
                    lengths[seed] += 1
            done |= np.asarray(infos["ended"])
            if done[: len(seeds)].all():
                break
    return returns, lengths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # In the vector env's processes, as in hocket's workers.
    sides = {}
    for name, side in (("hocket", run_hocket), ("lockstep", run_lockstep)):
        returns, lengths, wall_s = side(arguments.trials, arguments.lanes)
        sides[name] = {
            "returns": returns,
            "steps": lengths,
            "wall_s": wall_s,
            "steps_per_s": sum(lengths) / wall_s,
        }
        rate = sides[name]["steps_per_s"]
        print(f"{name:10} {sum(lengths):6} useful env steps in {wall_s:7.1f} s: {rate:7.1f} /s")
    ours, theirs = sides["hocket"], sides["lockstep"]
    same = sum(
        a == b and c == d
        for a, b, c, d in zip(
            ours["returns"], theirs["returns"], ours["steps"], theirs["steps"], strict=True
        )
    )
    ratio = ours["steps_per_s"] / theirs["steps_per_s"]
    print(f"returns and lengths equal to the bit in {same} of {arguments.trials} trials")
    print(f"hocket / lockstep: {ratio:.1f}x (at least 12x)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratio": ratio, "same": same, **sides}, indent=1))
    return 0 if ratio >= 12 and same == arguments.trials else 1


if __name__ == "__main__":
    sys.exit(main())
