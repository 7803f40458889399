"""How much of the possible gain asynchronous training gets: (C + T) / max(C, T) at most.

    python benchmarks/training/overlap.py

Collection of a batch takes C seconds and learning from it T, both by sleeping, so that the figure
is about overlap alone and not about this machine's cores. Synchronous and asynchronous runs are
the same but for the mode; the first updates are left out.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
import tyro

from hocket.train.config import TrainConfig
from hocket.train.loop import train
from hocket.train.networks.actor import ChunkActor
from hocket.train.networks.contract import Evaluated, Shapes, Tensors
from hocket.train.networks.policies import ActorConfig
from sleepy_env import STEPS

CHUNK, BATCH, LANES = 4, 8, 2
SKIPPED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepyConfig(ActorConfig):
    learn_s: float = 0.0


class SleepyActor(ChunkActor):
    """Learns for a given time: an update of one minibatch evaluates twice."""

    Config: ClassVar = SleepyConfig

    def __init__(self, shapes: Shapes, config: SleepyConfig) -> None:
        super().__init__(shapes, config)
        self._sleep_s = config.learn_s / 2

    def evaluate(self, observation: Tensors, actions: torch.Tensor, extras: Tensors) -> Evaluated:
        time.sleep(self._sleep_s)
        return super().evaluate(observation, actions, extras)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    updates: int = 12
    longest_s: float = 1.5
    """The larger of C and T."""
    ratios: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """C over T."""
    out: Path | None = None


def seconds_per_update(mode: str, collect_s: float, learn_s: float, updates: int) -> float:
    config = TrainConfig(
        env=("sleepy_env:make_sleepy",),
        env_config={"step_s": collect_s * LANES / (BATCH * STEPS)},
        policy="overlap:SleepyActor",
        policy_config={"chunk_length": CHUNK, "hidden": (8,), "learn_s": learn_s},
        mode=mode,
        reward="env",
        lanes=LANES,
        batch=BATCH,
        epochs=1,
        minibatch=10_000,
        steps=updates * BATCH * STEPS,
        eval_every=0,
        checkpoint_every=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", say=None)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["wall_s"] for line in lines][SKIPPED:]
    return (times[-1] - times[0]) / (len(times) - 1)


def main(setup: Benchmark) -> None:
    rows = []
    print("| C / T | C s | T s | sync s/update | async s/update | gain | possible | share |")
    print("|---|---|---|---|---|---|---|---|")
    for ratio in setup.ratios:
        collect_s = setup.longest_s * min(1.0, ratio)
        learn_s = setup.longest_s * min(1.0, 1 / ratio)
        sync, both = (
            seconds_per_update(mode, collect_s, learn_s, setup.updates)
            for mode in ("sync", "async")
        )
        possible = (collect_s + learn_s) / max(collect_s, learn_s)
        share = sync / both / possible
        rows.append({"ratio": ratio, "sync_s": sync, "async_s": both, "share": share})
        print(
            f"| {ratio:g} | {collect_s:.2f} | {learn_s:.2f} | {sync:.2f} | {both:.2f} "
            f"| {sync / both:.2f} | {possible:.2f} | {share:.2f} |",
            flush=True,
        )
    if setup.out is not None:
        setup.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
