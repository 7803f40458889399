"""One GPU that infers and renders: MT10 with two 224 px cameras and a policy of pi0's size.

    python benchmarks/engine/one_gpu.py [--episodes 40] [--lanes 16 32] [--json FILE]

The policy runs a module of 2.7 billion parameters with random weights on every observation, as one
CUDA graph for each padded batch size, and answers with the actions of `reference`, so that episodes
go as they should. Frames are rendered by EGL on the same GPU. The other sides are a lockstep vector
env (every env renders at every step, all share one action queue, the next episodes begin when the
slowest has ended) and one env at a time; each runs a share of the trials. Rates are useful env
steps a second. Before it runs, the script measures what the GPU can do: seconds for a frame and for
a row of the largest batch, each alone, and from them the most decisions a second.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import hocket
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.adapters.policies.reference import Reference
from hocket.adapters.policies.torch import TorchPolicy
from hocket.core.data import Array, Batch, Row, Trial, noise_seed

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))

ENV, PIXELS, LIMIT = "metaworld:mt10", 224, 500
CAMERAS = {"observation/image": "corner2", "observation/wrist_image": "gripperPOV"}
CONFIG: dict[str, Any] = {"cameras": tuple(CAMERAS.values()), "size": PIXELS}


class Large(Reference):
    """The reference policy with the cost of a large one: its answer waits for the module's."""

    def __init__(self, max_batch: int, *, module: Any = None) -> None:
        """`module` takes the place of the large one, on the CPU: to try a script without a GPU."""
        import pi0_sized

        super().__init__("", Reference.Config())
        self._module = TorchPolicy(
            pi0_sized.make(tuple(CAMERAS)) if module is None else module,
            chunk_length=pi0_sized.CHUNK,
            device="cuda" if module is None else "cpu",
            fixed_shapes=True,
            graphs=module is None,
            max_batch=max_batch,
        )
        self.spec = dataclasses.replace(
            self.spec,
            inputs=None,
            cameras=tuple(CAMERAS),
            max_batch=max_batch,
            batch_sizes=self._module.spec.batch_sizes,
            batch_invariant=False,
        )
        self._state_size = pi0_sized.STATE

    def infer(self, batch: Batch) -> hocket.Actions:
        state = np.zeros((batch.size, self._state_size), np.float32)
        images = {key: batch.arrays[key] for key in CAMERAS}
        arrays = {"observation/state": state, **images}
        self._module.infer(dataclasses.replace(batch, arrays=arrays))
        return super().infer(batch)


@dataclasses.dataclass
class Side:
    """What one way of running gave."""

    steps: int
    decisions: int
    successes: int
    episodes: int
    wall_s: float

    def to_json(self) -> dict[str, float]:
        rates = {"steps_per_s": self.steps / self.wall_s}
        rates["decisions_per_s"] = self.decisions / self.wall_s
        return {**dataclasses.asdict(self), **rates}


def run_hocket(policy: Large, episodes: int, lanes: int, render: str = "full") -> Side:
    report = hocket.evaluate(
        env=ENV,
        policy=policy,
        episodes=episodes,
        lanes=lanes,
        env_config={**CONFIG, "render": render},
        retries=0,
    )
    found = report.episodes
    chunk = policy.spec.chunk_length
    return Side(
        steps=sum(episode.steps for episode in found),
        decisions=sum(-(-episode.steps // chunk) for episode in found),
        successes=sum(episode.outcome.value == "success" for episode in found),
        episodes=len(found),
        wall_s=report.throughput.wall_s,
    )


class Frozen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An ended episode waits for the slowest: it is neither stepped nor rendered again."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._last: Any = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._last = None
        observation, _ = self.env.reset(**kwargs)
        return observation, {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._last is not None:
            return self._last, 0.0, False, False, {"ended": True, "success": False}
        observation, reward, terminated, truncated, info = self.env.step(action)
        success = bool(info["success"])
        ended = terminated or truncated or success
        self._last = observation if ended else None
        return observation, float(reward), False, False, {"ended": ended, "success": success}


def make_env(task: str, worker: int, render: str = "full") -> Frozen:
    MetaWorld.prepare_worker(worker)
    suite = MetaWorld(task, MetaWorld.Config(**{**CONFIG, "render": render}))
    return Frozen(suite.make(task))


def row(task: str, seed: int, chunk: int) -> Row:
    trial = Trial(suite=ENV, task=task, seed=seed)
    noise = noise_seed(trial, chunk)
    return Row(trial=trial, attempt=0, chunk=chunk, noise_seed=noise, prompt="", session="")


def run_lockstep(policy: Large, rounds: int, tasks: Sequence[str]) -> Side:
    """A vector env with a lane for each of `tasks`; each runs one episode a round. One lane is an
    env in this process."""
    makers = [partial(make_env, task, lane) for lane, task in enumerate(tasks)]
    envs: gymnasium.vector.VectorEnv[Any, Any, Any]
    if len(tasks) == 1:
        envs = gymnasium.vector.SyncVectorEnv(makers)
    else:
        envs = gymnasium.vector.AsyncVectorEnv(makers, context="spawn")
    side = Side(0, 0, 0, rounds * len(tasks), 0.0)
    try:
        envs.reset(seed=0)
        began = time.perf_counter()
        for seed in range(rounds):
            observation, _ = envs.reset(seed=[seed] * len(tasks))
            done = np.zeros(len(tasks), bool)
            queue: list[Array] = []
            for step in range(LIMIT):
                if not queue:
                    rows = tuple(row(task, seed, step) for task in tasks)
                    answer = policy.infer(Batch(arrays=observation, rows=rows))
                    queue = list(np.swapaxes(answer.values, 0, 1))
                    side.decisions += int((~done).sum())
                observation, _, _, _, infos = envs.step(queue.pop(0))
                side.steps += int((~done).sum())
                side.successes += int(np.sum(infos["success"]))
                done |= np.asarray(infos["ended"])
                if done.all():
                    break
        side.wall_s = time.perf_counter() - began
    finally:
        envs.close()
    return side


def run_single(policy: Large, tasks: Sequence[str]) -> Side:
    """One env after the other, an episode of each task."""
    sides = [run_lockstep(policy, 1, [task]) for task in tasks]
    return Side(*(sum(values) for values in zip(*map(dataclasses.astuple, sides), strict=True)))


def capacity(policy: Large, tasks: Sequence[str]) -> dict[str, float]:
    """Seconds of the GPU that a frame and a row of the largest batch cost, each alone."""
    env = make_env(tasks[0], 0).unwrapped
    env.reset(seed=0)

    def timed(call: Callable[[], Any]) -> float:
        took = []
        for _ in range(12):
            began = time.perf_counter()
            call()
            took.append(time.perf_counter() - began)
        return statistics.median(took[2:])

    frames_s = timed(env.observe) / len(CAMERAS)
    size = policy.spec.max_batch
    one, _ = env.reset(seed=0)
    rows = tuple(row(tasks[0], seed, 0) for seed in range(size))
    arrays = {key: np.repeat(np.asarray(value)[None], size, 0) for key, value in one.items()}
    row_s = timed(lambda: policy.infer(Batch(arrays=arrays, rows=rows))) / size
    env.close()
    return {
        "frame_s": frames_s,
        "row_s": row_s,
        "decisions_per_s": 1 / (len(CAMERAS) * frames_s + row_s),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=40, help="of each of the ten tasks")
    parser.add_argument("--lanes", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"  # In the vector env's processes, as in hocket's workers.
    tasks = [task.name for task in MetaWorld("mt10", MetaWorld.Config()).tasks()]
    policy = Large(max_batch=max(flags.lanes))
    able = capacity(policy, tasks)
    print(
        f"alone, a frame takes {1e3 * able['frame_s']:.1f} ms and a row of the largest batch "
        f"{1e3 * able['row_s']:.1f} ms: at most {able['decisions_per_s']:.0f} decisions/s",
        flush=True,
    )
    sides: dict[str, Callable[[], Side]] = {
        "one env at a time": lambda: run_single(policy, tasks),
        "lockstep, 16 envs": lambda: run_lockstep(policy, 1, (tasks * 2)[:16]),
    }
    for lanes in flags.lanes:
        sides[f"hocket, {lanes} lanes"] = partial(run_hocket, policy, flags.episodes, lanes)
    found: dict[str, dict[str, float]] = {}
    for name, run in sides.items():
        found[name] = run().to_json()
        shown = found[name]
        print(
            f"{name:20} {shown['steps_per_s']:7.0f} env steps/s {shown['decisions_per_s']:6.1f} "
            f"decisions/s, {shown['successes']:.0f} of {shown['episodes']:.0f} succeeded",
            flush=True,
        )
    best = max(one["steps_per_s"] for name, one in found.items() if name.startswith("hocket"))
    for name in list(found)[:2]:
        print(f"hocket / {name}: {best / found[name]['steps_per_s']:.1f}x")
    if flags.json:
        flags.json.write_text(json.dumps({"alone": able, **found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
