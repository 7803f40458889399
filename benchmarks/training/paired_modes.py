"""Does async learn more slowly than sync? Pairs of runs with the same seed, by env steps.

    python benchmarks/training/paired_modes.py --out /tmp/modes

Both modes train the same small task (a point that should reach the origin, chunks of 4, the env's
dense reward or success alone) from the same first weights, seed by seed, and stop where 95 % of 20
evaluation trials succeed. Env steps do not depend on how fast the machine is; the age of data in
async mode does, and is shown. A Wilcoxon test of the pairs says whether one mode needs more. A cell
that has its file is not run again.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from scipy.stats import wilcoxon

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from hocket.train.config import TrainConfig
from hocket.train.loop import train

MODES = ("sync", "async")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is compared."""

    out: Path
    seeds: int = 10
    steps: int = 20_000
    reward: str = "env"
    step_s: float = 0.0
    """Seconds that a step of the env sleeps, so that collection takes time beside learning."""


def cell(setup: Benchmark, mode: str, seed: int) -> dict[str, Any]:
    """Env steps until the target, and how old data was on average."""
    folder = setup.out / f"{mode}-{seed}"
    file = folder.with_suffix(".json")
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    config = TrainConfig(
        env=("support.point_env:make",),
        env_config={"step_s": setup.step_s},
        policy="actor",
        policy_config={"chunk_length": 4, "hidden": (64, 64), "seed": seed},
        mode=mode,
        reward=setup.reward,
        steps=setup.steps,
        seed=seed,
        lanes=1,
        eval_every=500,
        eval_episodes=20,
        stop_at=0.95,
        checkpoint_every=0,
    )
    train(config, folder, say=None)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    done = [r["env_steps"] for r in records if r["kind"] == "eval" and r["eval/success"] >= 0.95]
    ages = [record["learn/staleness"] for record in records if record["kind"] == "update"]
    found = {"steps": done[0] if done else None, "age": statistics.fmean(ages)}
    file.write_text(json.dumps(found))
    return found


def main(setup: Benchmark) -> None:
    torch.set_num_threads(1)
    setup.out.mkdir(parents=True, exist_ok=True)
    print("| seed | sync, env steps | async, env steps | mean age in async, versions |")
    print("|---|---|---|---|")
    pairs = []
    for seed in range(setup.seeds):
        order = MODES if seed % 2 else MODES[::-1]
        found = {mode: cell(setup, mode, seed) for mode in order}
        told = ["-" if found[m]["steps"] is None else f"{found[m]['steps']:,}" for m in MODES]
        print(f"| {seed} | {told[0]} | {told[1]} | {found['async']['age']:.2f} |", flush=True)
        pairs.append([found[mode]["steps"] or setup.steps for mode in MODES])
    sync, asynchronous = zip(*pairs, strict=True)
    test = wilcoxon(sync, asynchronous)
    print(
        f"median {statistics.median(sync):,.0f} in sync and {statistics.median(asynchronous):,.0f} "
        f"in async; n = {len(pairs)} pairs, p = {test.pvalue:.2g} (Wilcoxon, two-sided)"
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
