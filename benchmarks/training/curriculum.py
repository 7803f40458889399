"""What `--curriculum hard` gives where a few starts are hard: env steps until all succeed.

    python benchmarks/training/curriculum.py

A toy of sixteen starts and one step: an action succeeds where it is near what its start wants. For
fourteen of them that is what a new policy does anyway; two want actions far from that. Each seed is
trained with the curriculum and without, from the same first weights.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parent))

STARTS = 16
WANTED = {3: (0.9, -0.9), 11: (-0.9, 0.9)}
"""What the hard starts want; the others want nothing."""
NEAR = 0.5


class Sixteen(gymnasium.Env[Any, Any]):
    """Shows which of sixteen starts it is, and ends after one action."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"state": spaces.Box(0, 1, (STARTS,), np.float32)})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._start = (seed or 0) % STARTS
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        off = np.abs(np.asarray(action) - WANTED.get(self._start, (0.0, 0.0))).max()
        return self._see(), 0.0, True, False, {"success": bool(off < NEAR)}

    def _see(self) -> dict[str, Any]:
        return {"state": np.eye(STARTS, dtype=np.float32)[self._start]}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How much is run."""

    seeds: int = 5
    steps: int = 6000


def steps_until_all(folder: Path, setup: Benchmark, seed: int, curriculum: str) -> int | None:
    from hocket.train.config import TrainConfig
    from hocket.train.loop import train

    config = TrainConfig(
        env=("curriculum:Sixteen",),
        policy="actor",
        policy_config={"chunk_length": 1, "hidden": (32,), "std": 0.4, "seed": seed},
        steps=setup.steps,
        lanes=1,
        seed=seed,
        starts=STARTS,
        curriculum=curriculum,
        eval_every=320,
        eval_episodes=STARTS,
        stop_at=1.0,
        checkpoint_every=0,
        value_only=0,
        lr=3e-3,
    )
    train(config, folder, say=None)
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    done = [r["env_steps"] for r in records if r["kind"] == "eval" and r["eval/success"] == 1.0]
    return done[0] if done else None


def main(setup: Benchmark) -> None:
    torch.set_num_threads(1)
    print("| seed | every start alike | hard starts first |")
    print("|---|---|---|")
    found: dict[str, list[int | None]] = {"": [], "hard": []}
    for seed in range(setup.seeds):
        for curriculum, steps in found.items():
            with tempfile.TemporaryDirectory() as folder:
                steps.append(steps_until_all(Path(folder) / "run", setup, seed, curriculum))
        told = ["-" if steps[-1] is None else f"{steps[-1]:,}" for steps in found.values()]
        print(f"| {seed} | {told[0]} | {told[1]} |", flush=True)
    known = {name: [s or setup.steps for s in steps] for name, steps in found.items()}
    means = [statistics.fmean(steps) for steps in known.values()]
    print(f"mean (of {setup.steps:,} where not reached): {means[0]:,.0f} against {means[1]:,.0f}")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
