"""Tasks that hocket was never tuned on: a weak clone of each, trained with default settings.

    python benchmarks/training/unseen.py --out /tmp/unseen

Four tasks are drawn from MetaWorld's MT50 outside MT10, with a fixed seed; PPO trains all of them,
GRPO the first two, `--minutes` each at most. `learning.py` finds the clones and says how start and
end are measured. A cell that has its result.json is not run again, so that the script goes on where
it was stopped; cells that did not reach anything are shown as well. Several machines or cores can
share the work: `--cells 0,4` runs the first and the fifth.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from metaworld.policies import ENV_POLICY_MAP

import learning
from hocket.adapters.envs.metaworld import MT10

SEED, TASKS = 20261115, 4


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is trained."""

    out: Path
    minutes: float = 20.0
    """Longest training of one cell."""
    lanes: int = 2
    seed: int = 0
    cells: tuple[int, ...] = (0, 1, 2, 3, 4, 5)


def drawn() -> list[str]:
    """The tasks, always the same."""
    return random.Random(SEED).sample(sorted(set(ENV_POLICY_MAP) - set(MT10)), TASKS)


def row(task: str, algo: str, result: dict[str, Any]) -> str:
    def rate(score: dict[str, Any]) -> str:
        low, high = (100 * end for end in score["interval"])
        return f"{100 * score['rate']:.0f} % [{low:.0f}, {high:.0f}]"

    told = "yes" if result["reached"] else "**no**"
    minutes = result["train_s"] / 60
    return (
        f"| {task} | {algo.upper()} | {rate(result['start'])} | {rate(result['end'])} | {told} "
        f"| {minutes:.1f} minutes | {result['clone']} |"
    )


def main(setup: Benchmark) -> None:
    tasks = drawn()
    cells = [(task, "ppo") for task in tasks] + [(task, "grpo") for task in tasks[:2]]
    print("| task | algorithm | start | end | reached | trained for | clone |")
    print("|---|---|---|---|---|---|---|")
    for task, algo in (cells[number] for number in setup.cells):
        folder = setup.out / f"{task}-{algo}"
        if not (folder / "result.json").exists():
            cell = learning.Benchmark(
                out=folder,
                clones=setup.out / "clones",
                task=task,
                algo=algo,
                mode="async",
                seed=setup.seed,
                minutes=setup.minutes,
                steps=100_000_000,
                lanes=setup.lanes,
            )
            try:
                learning.main(cell)
            except SystemExit as none:
                print(f"| {task} | {algo.upper()} | {none} | | **no** | | |", flush=True)
                continue
        result = json.loads((folder / "result.json").read_text())
        print(row(task, algo, result), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
