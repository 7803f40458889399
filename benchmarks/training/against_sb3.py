"""hocket's PPO against that of stable-baselines3: env steps and seconds to the same score.

    pip install 'hocket[train,metaworld,sb3]'
    python benchmarks/training/against_sb3.py --out /tmp/sb3 --tasks pendulum,point,point-x1000
    python benchmarks/training/against_sb3.py --out /tmp/sb3 --tasks dense:Hopper-v5:1

Both train the same env with the same reward from scratch, with two layers of 64, on the same cores,
one after the other in one run, seed by seed; who goes first alternates. Both are evaluated
as often, without noise, on the same 20 starts. Settings are the defaults of each, but for what
`TASKS` says of the env (its gamma, which both get). A score is the share of successes where the env
tells them and its reward agrees with them, else the mean return; who has reached it stops. A cell
that has its file is not run again, so that seeds and sides may be run in processes of their own.
`dense:NAME:CHUNK` is an env of `dense_envs.py`, gymnasium's included, judged by its mean return
after 100,000 env steps, and by what that is above the first evaluation.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dense_envs

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from hocket.train.config import TrainConfig
from hocket.train.loop import train

TRIALS = 20


@dataclass(frozen=True, kw_only=True)
class Task:
    """An env that both are trained in."""

    env: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    """The same env for stable-baselines3."""
    target: float
    """The score of an evaluation that is to be reached."""
    steps: int
    every: int
    """Env steps between evaluations."""
    chunk: int
    """Actions of a chunk of hocket's; stable-baselines3 decides at every step."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of both, under hocket's names."""
    env_config: dict[str, Any] = field(default_factory=dict)
    by_return: bool = False
    """Whether success is no score. Reach pays for every step near the goal, and success ends an
    episode, so that who learns to collect the most learns not to succeed."""
    lanes: int = 1
    """Envs at once of hocket's; stable-baselines3 has eight of the light ones."""
    parallel: bool = False
    """Whether envs are heavy enough for processes to pay."""


def point(size: float) -> gymnasium.Env[Any, Any]:
    from support.point_env import PointEnv

    return gymnasium.wrappers.FlattenObservation(PointEnv(reward_size=size))


def reach() -> gymnasium.Env[Any, Any]:
    from hocket.adapters.envs.metaworld import MetaWorld

    env = MetaWorld("reach-v3", MetaWorld.Config(max_steps=150)).make("reach-v3")
    env.use_cameras(())
    return StateAlone(env)


class Pendulums(SyncVectorEnv):
    """Pendulums in one process, whose rows can be suspended."""

    def __init__(self, rows: int) -> None:
        makers = [lambda: gymnasium.make("Pendulum-v1")] * rows
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)

    def get_rows(self, rows: Sequence[int]) -> Any:
        envs: list[Any] = [self.envs[row] for row in rows]
        return np.array([[*env.unwrapped.state, env._elapsed_steps] for env in envs])

    def set_rows(self, rows: Sequence[int], states: Any) -> None:
        for row, state in zip(rows, states, strict=True):
            env: Any = self.envs[row]
            env.unwrapped.state, env._elapsed_steps = state[:2], int(state[2])


class StateAlone(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The state of MetaWorld as one vector; success ends an episode, as hocket does it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (39,), np.float64)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._left = 150
        seen, info = self.env.reset(**given)
        return seen["observation/state"], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, ended, _, info = self.env.step(action)
        self._left -= 1
        is_over = bool(ended or info["success"])
        return seen["observation/state"], reward, is_over, not is_over and self._left <= 0, info


def dense(name: str, chunk: int) -> Task:
    """An env of `dense_envs.py`, by its mean return after 100,000 env steps."""
    return Task(
        env=f"vector:dense_envs:{name.replace('-', '_')}",
        make=lambda: dense_envs.make(name),
        target=float("inf"),
        steps=100_000,
        every=25_000,
        chunk=chunk,
        env_config={"max_steps": dense_envs.steps_of(name)},
        lanes=8,
        by_return=True,
    )


def task_of(name: str) -> Task:
    """The task of a name, or that of `dense:NAME:CHUNK`."""
    if not name.startswith("dense:"):
        return TASKS[name]
    _, env, chunk = name.split(":")
    return dense(env, int(chunk))


TASKS = {
    "pendulum": Task(
        env="vector:against_sb3:Pendulums",
        make=lambda: gymnasium.make("Pendulum-v1"),
        target=-300.0,
        steps=150_000,
        every=5_000,
        chunk=1,
        settings={"gamma": 0.95},
        env_config={"max_steps": 200},
        lanes=8,
    ),
    "point": Task(
        env="support.point_env:make",
        make=lambda: point(1.0),
        target=0.95,
        steps=40_000,
        every=1_000,
        chunk=4,
    ),
    "point-x1000": Task(
        env="support.point_env:make",
        make=lambda: point(1000.0),
        target=0.95,
        steps=40_000,
        every=1_000,
        chunk=4,
        env_config={"reward_size": 1000.0},
    ),
    "reach": Task(
        env="metaworld:reach-v3",
        make=reach,
        target=900.0,
        steps=400_000,
        every=20_000,
        chunk=8,
        env_config={"max_steps": 150},
        lanes=2,
        by_return=True,
        parallel=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is compared."""

    out: Path
    tasks: str = "pendulum,point,point-x1000,reach"
    seeds: str = "0,1,2"
    sides: str = "hocket,sb3"
    minutes: float = 15.0
    """Longest time of one training."""


Curve = list[tuple[int, float, float]]
"""Env steps, seconds since training began, and the score there."""


def with_hocket(task: Task, seed: int, setup: Benchmark, folder: Path) -> Curve:
    config = TrainConfig.from_plain(
        {
            "env": task.env,
            "policy": "actor",
            "policy_config": {"chunk_length": task.chunk, "hidden": [64, 64], "seed": seed},
            "env_config": task.env_config,
            "reward": "env",
            "seed": seed,
            "steps": task.steps,
            "minutes": setup.minutes,
            "stop_at": None if task.by_return else task.target,
            "lanes": task.lanes,
            "eval_every": task.every,
            "eval_episodes": TRIALS,
            "checkpoint_every": 0,
            **task.settings,
        }
    )
    train(config, folder, say=None)
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        (
            record["env_steps"],
            record["wall_s"],
            record["eval/return"]
            if task.by_return
            else record.get("eval/success", record["eval/return"]),
        )
        for record in records
        if record["kind"] == "eval"
    ]


def with_sb3(task: Task, seed: int, setup: Benchmark, folder: Path) -> Curve:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    folder.mkdir(parents=True)
    tried = task.make()
    curve: Curve = []

    def evaluate(model: PPO) -> float:
        scores = []
        for trial in range(TRIALS):
            seen, _ = tried.reset(seed=trial)
            total, is_over = 0.0, False
            while not is_over:
                action, _ = model.predict(seen, deterministic=True)
                seen, reward, ended, cut, info = tried.step(action)
                total, is_over = total + float(reward), ended or cut
            scores.append(total if task.by_return else float(info.get("success", total)))
        return statistics.fmean(scores)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps // task.every > (curve[-1][0] // task.every if curve else -1):
                found = evaluate(self.model)
                curve.append((self.num_timesteps, time.perf_counter() - began, found))
            is_late = time.perf_counter() - began > 60 * setup.minutes
            return not is_late and curve[-1][2] < task.target

    kind = SubprocVecEnv if task.parallel else DummyVecEnv
    envs = make_vec_env(
        task.make, n_envs=task.lanes if task.parallel else 8, seed=seed, vec_env_cls=kind
    )
    began = time.perf_counter()
    # As many steps between updates as its default, however many envs there are.
    model = PPO(
        "MlpPolicy", envs, seed=seed, device="cpu", n_steps=2048 // envs.num_envs, **task.settings
    )
    try:
        model.learn(task.steps, Watch())
    finally:
        envs.close()
    return curve


SIDES = {"hocket": with_hocket, "sb3": with_sb3}


def reached(curve: Curve, target: float) -> tuple[int, float] | None:
    """Returns env steps and seconds at the first evaluation with that score."""
    return next(((steps, wall) for steps, wall, mean in curve if mean >= target), None)


def row(name: str, side: str, curves: list[Curve]) -> str:
    if name.startswith("dense:"):
        last = [curve[-1][2] for curve in curves]
        means = ", ".join(f"{one:.4g}" for one in last)
        gain = statistics.fmean(last) - statistics.fmean(curve[0][2] for curve in curves)
        return f"| {name} | {side} | at {curves[0][-1][0]:,} | {means} | gain {gain:.4g} | |"
    found = [reached(curve, TASKS[name].target) for curve in curves]
    steps = ", ".join("-" if one is None else f"{one[0]:,}" for one in found)
    walls = ", ".join("-" if one is None else f"{one[1]:.0f}" for one in found)
    best = ", ".join(f"{max(mean for _, _, mean in curve):.4g}" for curve in curves)
    return f"| {name} | {side} | {TASKS[name].target:g} | {steps} | {walls} | {best} |"


def main(setup: Benchmark) -> None:
    torch.set_num_threads(1)
    print("| env | side | score | env steps until then, by seed | seconds | best score |")
    print("|---|---|---|---|---|---|")
    for name in setup.tasks.split(","):
        curves: dict[str, list[Curve]] = {side: [] for side in setup.sides.split(",")}
        for seed in map(int, setup.seeds.split(",")):
            order = sorted(curves, reverse=bool(seed % 2))
            for side in order:
                cell = setup.out / f"{name.replace(':', '-')}-{side}-{seed}"
                file = cell.with_suffix(".json")
                if not file.exists():
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(json.dumps(SIDES[side](task_of(name), seed, setup, cell)))
                curves[side].append(json.loads(file.read_text()))
        for side, found in curves.items():
            print(row(name, side, found), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
