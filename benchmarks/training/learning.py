"""From a weak clone of an expert to a good policy: start and end on the same unseen trials.

    python benchmarks/training/learning.py --task window-close-v3 --algo ppo --mode sync \\
        --out /tmp/x

Clones MetaWorld's expert (`hocket train --algo bc`) until the clone succeeds in 20 to 60 % of some
trials; trains it; then measures start and end deterministically on 100 other trials that neither
cloning, nor training, nor the choice of the best checkpoint ever saw. Writes result.json and the
curve. A clone that lies in --clones already is taken as it is, so that several runs can begin with
the same one.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import hocket
from hocket.core import machine
from hocket.runs.collect import CollectConfig, collect
from hocket.runs.config import EvalConfig
from hocket.train.config import TrainConfig
from hocket.train.loop import train

MAX_STEPS = 200
CHOOSING_SEED, TEST_SEED, DEMONSTRATION_SEED = 6000, 5000, 8000
LOWEST, HIGHEST = 0.2, 0.6
"""How often a weak clone succeeds."""
LADDER = tuple(
    (episodes, every) for episodes in (1, 2, 4, 8, 16) for every in (12_800, 3_200, 1_600)
)
"""Demonstrations, and recorded steps between two looks at a clone."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to learn, and how."""

    out: Path
    clones: Path = Path("clones")
    """Where clones and the demonstrations that they are made of are kept."""
    task: str = "window-close-v3"
    algo: str = "ppo"
    mode: str = "sync"
    seed: int = 0
    steps: int = 1_000_000
    minutes: float = 20.0
    lanes: int = 2
    trials: int = 100
    target: float = 0.97
    """Training stops early once an evaluation is this good."""
    changes: tuple[str, ...] = ()
    """Settings other than the defaults of `hocket train`, as NAME=VALUE."""


def measure(task: str, policy: str, *, seed: int, trials: int, lanes: int) -> dict[str, object]:
    report = hocket.evaluate(
        env=f"metaworld:{task}",
        policy=policy,
        episodes=trials,
        seed=seed,
        lanes=lanes,
        env_config={"max_steps": MAX_STEPS},
    )
    return report.overall.to_json()


def weak_clone(setup: Benchmark) -> tuple[str, str]:
    """The folder of a clone that is neither hopeless nor good, and how it was made: the first that
    a cloning run meets, of ever more demonstrations and ever closer looks."""
    made = setup.clones / f"{setup.task}.json"
    if made.exists():
        found = json.loads(made.read_text())
        return found["policy"], found["recipe"]
    demos = demonstrate(setup)
    for episodes, every in LADDER:
        folder = setup.clones / f"{setup.task}-{episodes}-{every}"
        shutil.rmtree(folder, ignore_errors=True)
        result = train(cloning(setup, demos, episodes, every), folder, say=None)
        recipe = f"{episodes} demonstrations, {result.env_steps:,} recorded steps learnt from"
        print(f"{setup.task}: clone of {recipe}: {result.best:.0%}", flush=True)
        if result.best is not None and LOWEST <= result.best <= HIGHEST:
            text = {"policy": str(folder / "best"), "recipe": recipe, "rate": result.best}
            made.write_text(json.dumps(text))
            return text["policy"], recipe
    raise SystemExit(f"No clone of {setup.task} succeeds in between 20 and 60 % of trials.")


def demonstrate(setup: Benchmark) -> Path:
    """A run folder with episodes of the expert that succeeded."""
    folder = setup.clones / f"{setup.task}-demonstrations"
    config = EvalConfig.from_plain(
        {
            "env": f"metaworld:{setup.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": "metaworld-expert",
            "episodes": LADDER[-1][0],
            "seed": DEMONSTRATION_SEED,
            "lanes": setup.lanes,
            "video": "none",
        }
    )
    collect(CollectConfig(run=config, to="run"), folder)
    return folder


def cloning(setup: Benchmark, demos: Path, episodes: int, every: int) -> TrainConfig:
    return TrainConfig.from_plain(
        {
            "env": f"metaworld:{setup.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": "actor",
            "policy_config": {
                "features": "metaworld",
                "chunk_length": 16,
                "hidden": [256, 256, 256],
                "std": 0.25,
            },
            "algo": "bc",
            "data": str(demos),
            "data_episodes": episodes,
            "steps": 16 * every,
            "stop_at": LOWEST,
            "lanes": setup.lanes,
            "eval_every": every,
            "eval_episodes": 30,
            "eval_seed": CHOOSING_SEED,
            "checkpoint_every": 0,
        }
    )


def learn(setup: Benchmark, clone: str) -> float:
    """Train with what `hocket train` does by default, but for `changes`; returns the seconds."""
    config = TrainConfig.from_plain(
        {
            "env": f"metaworld:{setup.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": clone,
            "algo": setup.algo,
            "mode": setup.mode,
            "seed": setup.seed,
            "steps": setup.steps,
            "minutes": setup.minutes,
            "lanes": setup.lanes,
            "eval_every": 15_000,
            "eval_episodes": 30,
            "eval_seed": 7000,
            "stop_at": setup.target,
            "checkpoint_every": 0,
            **changed(setup),
        }
    )
    began = time.perf_counter()
    train(config, setup.out / "run")
    return time.perf_counter() - began


def changed(setup: Benchmark) -> dict[str, Any]:
    pairs = (change.partition("=") for change in setup.changes)
    return {name: plain_value(value) for name, _, value in pairs}


def plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main(setup: Benchmark) -> None:
    torch.set_num_threads(1)
    setup.out.mkdir(parents=True, exist_ok=True)
    clone, recipe = weak_clone(setup)
    test = {"seed": TEST_SEED, "trials": setup.trials, "lanes": setup.lanes}
    start = measure(setup.task, clone, **test)
    seconds = learn(setup, clone)
    end = measure(setup.task, str(setup.out / "run" / "best"), **test)
    result = {
        "task": setup.task,
        "algo": setup.algo,
        "mode": setup.mode,
        "seed": setup.seed,
        "changes": setup.changes,
        "cores": machine.cores(),
        "clone": recipe,
        "train_s": round(seconds, 1),
        "start": start,
        "end": end,
        "reached": end["rate"] >= 0.9 and end["interval"][0] > start["interval"][1],
    }
    (setup.out / "result.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
