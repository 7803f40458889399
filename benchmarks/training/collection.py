"""Chunk samples a second with one camera, against a lockstep collector of vectorised envs.

    python benchmarks/training/collection.py --lanes 2

Both sides drive the same MetaWorld task with the same sampling network and 128 px images, in the
same run, one after the other. The lockstep collector is what RL frameworks do: gymnasium's
AsyncVectorEnv steps all envs together, observes (and so renders) at every step, replays each chunk
to its end, and waits for the slowest env.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro

import hocket
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ArraySpec
from hocket.train.collect.policy import CollectingPolicy
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.contract import Shapes
from hocket.train.networks.policies import ActorConfig

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
IMAGE, STATE = "observation/image", "observation/state"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    task: str = "window-close-v3"
    lanes: int = 2
    chunk: int = 16
    size: int = 128
    chunks: int = 10
    """Of each lane, measured."""
    rounds: int = 3
    out: Path | None = None


def collecting_policy(setup: Benchmark) -> CollectingPolicy:
    torch.set_num_threads(1)
    shapes = Shapes(
        observations={
            STATE: ArraySpec(shape=(39,), dtype="<f8"),
            IMAGE: ArraySpec(shape=(setup.size, setup.size, 3), dtype="|u1"),
        },
        action_size=4,
        tasks=(setup.task,),
        cameras=(IMAGE,),
    )
    network = ChunkActor(shapes, ActorConfig(chunk_length=setup.chunk, images=True))
    policy = CollectingPolicy(network, shapes, evaluated_as=lambda _: None)
    policy.limit(setup.lanes)
    return policy


def ours(setup: Benchmark) -> float:
    """Chunks a second, from the first batch to the last chunk."""
    report = hocket.evaluate(
        env=f"metaworld:{setup.task}",
        policy=collecting_policy(setup),
        episodes=setup.lanes,
        seed=100,
        lanes=setup.lanes,
        max_steps=setup.chunk * setup.chunks,
        env_config={"size": setup.size},
    )
    throughput = report.throughput
    # The last chunk of an evaluation is not followed by an image: it does not count.
    return (throughput.chunks - setup.lanes) / throughput.wall_s


class Plain(gymnasium.Wrapper):  # type: ignore[type-arg]
    """The env without its abilities: it observes at every step, as vector envs expect."""


class Maker:
    """Makes one env in its own process."""

    def __init__(self, setup: Benchmark) -> None:
        self._setup = setup

    def __call__(self) -> gymnasium.Env[Any, Any]:
        # As workers of the other side have it.
        os.environ.update(dict.fromkeys(THREADS, "1"))
        config = MetaWorld.Config(size=self._setup.size, max_steps=10_000)
        return Plain(MetaWorld(self._setup.task, config).make(self._setup.task))


def lockstep(setup: Benchmark) -> float:
    """Chunks a second of the vector env, from its first chunk on."""
    policy = collecting_policy(setup)
    envs = gymnasium.vector.AsyncVectorEnv(
        [Maker(setup) for _ in range(setup.lanes)], context="spawn", shared_memory=True
    )
    try:
        observation, _ = envs.reset(seed=[100 + lane for lane in range(setup.lanes)])
        began = time.perf_counter()
        for chunk in range(setup.chunks):
            rows = []
            for lane in range(setup.lanes):
                trial = Trial(suite="metaworld", task=setup.task, seed=100 + lane)
                seed = noise_seed(trial, chunk)
                rows.append(
                    Row(
                        trial=trial,
                        attempt=0,
                        chunk=chunk,
                        noise_seed=seed,
                        prompt="",
                        session=trial.id,
                    )
                )
            arrays = {key: np.array(observation[key]) for key in (STATE, IMAGE)}
            actions = policy.infer(Batch(arrays=arrays, rows=tuple(rows))).values
            for step in range(setup.chunk):
                observation, *_ = envs.step(np.clip(actions[:, step], -1, 1).astype(np.float32))
        return setup.chunks * setup.lanes / (time.perf_counter() - began)
    finally:
        envs.close()


def main(setup: Benchmark) -> None:
    print("| round | lockstep, chunks/s | hocket, chunks/s | times |")
    print("|---|---|---|---|")
    rows = []
    for number in range(setup.rounds):
        theirs, mine = lockstep(setup), ours(setup)
        rows.append({"lockstep": theirs, "hocket": mine})
        print(f"| {number + 1} | {theirs:.2f} | {mine:.2f} | {mine / theirs:.1f} |", flush=True)
    times = sorted(row["hocket"] / row["lockstep"] for row in rows)
    print(f"\nmedian {times[len(times) // 2]:.1f}, {setup.lanes} lanes, chunks of {setup.chunk}")
    if setup.out is not None:
        setup.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
