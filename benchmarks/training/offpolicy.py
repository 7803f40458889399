"""Env steps to 90 % from 20 demonstrations: learning from all that was collected, against PPO.

    python benchmarks/training/offpolicy.py --draw 20261119 --out /tmp/offpolicy

Tasks are drawn from MetaWorld's MT50 outside MT10 and outside what defaults were tried on, by the
seed `--draw`, which is given once the code is frozen. Of each, 20 demonstrations are recorded and
cloned for a short while; both algorithms begin with that clone, are given the demonstrations, and
stop at the first evaluation of 90 %, or after `--minutes`. A clone that is there already is shown
and decides nothing. A cell that has its result is not run again, so that the script goes on where
it was stopped; every cell is shown. `--cells 0,3` runs the first and the fourth.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from metaworld.policies import ENV_POLICY_MAP

from hocket.adapters.envs.metaworld import MT10
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.config import EvalConfig
from hocket.train.config import TrainConfig
from hocket.train.loop import train

NAMED = ("push-back-v3", "hammer-v3", "push-v3", "peg-insert-side-v3")
"""Tasks that defaults were tried on."""
GOAL, DEMONSTRATIONS = 0.9, 20
DEMONSTRATION_SEED, CHOOSING_SEED = 8000, 6000
ALGORITHMS = ("rlpd", "ppo")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is trained."""

    out: Path
    draw: int
    """Seed of the drawing."""
    tasks: int = 3
    minutes: float = 6.0
    """Longest training of a cell."""
    clone_steps: int = 3200
    """Recorded steps that the clone learns from."""
    every: int = 500
    """Env steps between evaluations, of 20 trials each."""
    lanes: int = 2
    cells: tuple[int, ...] = ()
    """Which cells are run; all without."""


def drawn(setup: Benchmark) -> list[str]:
    known = sorted(set(ENV_POLICY_MAP) - set(MT10) - set(NAMED))
    return random.Random(setup.draw).sample(known, setup.tasks)


def prepared(setup: Benchmark, task: str) -> dict[str, Any]:
    """What both algorithms of a task begin with."""
    shown, clone = setup.out / f"{task}-shown", setup.out / f"{task}-clone"
    named = {"env": (f"metaworld:{task}",), "lanes": setup.lanes}
    run = EvalConfig(
        **named,
        policy="metaworld-expert",
        episodes=DEMONSTRATIONS,
        seed=DEMONSTRATION_SEED,
        video="none",
    )
    collect(CollectConfig(run=run, to="run"), shown)
    if not (clone / "best").is_dir():
        config = TrainConfig(
            **named,
            policy="actor",
            policy_config={"features": "metaworld"},
            algo="bc",
            data=(str(shown),),
            steps=setup.clone_steps,
            eval_every=0,
            std=0.2,
        )
        train(config, clone)
    return {**named, "policy": str(_newest(clone)), "data": (str(shown),)}


def _newest(run: Path) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1]


def trained(setup: Benchmark, task: str, algo: str) -> dict[str, Any]:
    run = setup.out / f"{task}-{algo}"
    kept = run / "result.json"
    if not kept.is_file():
        is_begun = (run / "checkpoints").is_dir()
        config = TrainConfig(
            **prepared(setup, task),
            algo=algo,
            steps=1_000_000,
            minutes=setup.minutes,
            stop_at=GOAL,
            eval_every=setup.every,
            eval_seed=CHOOSING_SEED,
        )
        train(config, run, resume=is_begun)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        curve = [(one["env_steps"], one["eval/success"]) for one in lines if one["kind"] == "eval"]
        kept.write_text(json.dumps(curve))
    curve = json.loads(kept.read_text())
    reached = next((steps for steps, rate in curve if rate >= GOAL), None)
    return {"curve": curve, "start": curve[0][1], "best": max(r for _, r in curve), "at": reached}


def main(setup: Benchmark) -> None:
    cells = [(task, algo) for task in drawn(setup) for algo in ALGORITHMS]
    print("| task | algorithm | clone | env steps to 90 % | best | env steps in all |")
    print("|---|---|---|---|---|---|", flush=True)
    for number in setup.cells or range(len(cells)):
        task, algo = cells[number]
        found = trained(setup, task, algo)
        at = "not reached" if found["at"] is None else f"{found['at']:,}"
        print(
            f"| {task} | {algo.upper()} | {100 * found['start']:.0f} % | {at} "
            f"| {100 * found['best']:.0f} % | {found['curve'][-1][0]:,} |",
            flush=True,
        )


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
