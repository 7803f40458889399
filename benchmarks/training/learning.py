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

import fcntl
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

import hocket
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.config import EvalConfig
from hocket.system import machine
from hocket.train.config import TrainConfig
from hocket.train.loop import train

MAX_STEPS = 200
CHOOSING_SEED, TEST_SEED, DEMONSTRATION_SEED = 6000, 5000, 8000
LOWEST, HIGHEST = 0.2, 0.6
"""How often a weak clone succeeds."""
FEWER, MORE = (4, 2, 1), (4, 8, 16)
"""Demonstrations, where clones are too good and where they are too weak."""
LOOKS = ((12_800, 3e-4), *((1_600, rate) for rate in (3e-4, 6e-5, 3e-5, 1e-5, 5e-6)))
"""Recorded steps between two looks at a clone, and the learning rate: ever slower, until a look
meets it while it is weak."""
LOOKS_AT_MOST = 12


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
    """The folder of a clone that is neither hopeless nor good, and how it was made. Whoever comes
    while it is made waits for it."""
    setup.clones.mkdir(parents=True, exist_ok=True)
    with open(setup.clones / f"{setup.task}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = setup.clones / f"{setup.task}.json"
        if not made.exists():
            made.write_text(json.dumps(find_clone(setup)))
        found = json.loads(made.read_text())
        return found["policy"], found["recipe"]


def find_clone(setup: Benchmark) -> dict[str, Any]:
    """Clone with a few demonstrations. What is too weak to the end is tried with more of them, what
    is too good at the first look more slowly, and then with fewer."""
    demos = demonstrate(setup)
    episodes, left = MORE[0], {"more": list(MORE[1:]), "fewer": list(FEWER[1:])}
    while True:
        found, told = clone_with(setup, demos, episodes)
        if found is not None:
            return found
        if not left[told]:
            raise SystemExit(f"No clone of {setup.task} succeeds in between 20 and 60 % of trials.")
        episodes = left[told].pop(0)


def clone_with(setup: Benchmark, demos: Path, episodes: int) -> tuple[dict[str, Any] | None, str]:
    """A weak clone of so many demonstrations, or whether more or fewer are to be tried."""
    for number, (every, rate) in enumerate(LOOKS):
        folder = setup.clones / f"{setup.task}-{episodes}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        result = train(cloning(setup, demos, episodes, every, rate), folder, say=None)
        recipe = f"{episodes} demonstrations, {result.env_steps:,} recorded steps at {rate:g}"
        best = result.best or 0.0
        print(f"{setup.task}: clone of {recipe}: {best:.0%}", flush=True)
        if LOWEST <= best <= HIGHEST:
            return {"policy": str(folder / "best"), "recipe": recipe, "rate": best}, ""
        if best < LOWEST:
            return None, "more" if number == 0 else "fewer"
    return None, "fewer"


def demonstrate(setup: Benchmark) -> Path:
    """A run folder with episodes of the expert that succeeded."""
    folder = setup.clones / f"{setup.task}-demonstrations"
    config = EvalConfig.from_plain(
        {
            "env": f"metaworld:{setup.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": "metaworld-expert",
            "episodes": MORE[-1],
            "seed": DEMONSTRATION_SEED,
            "lanes": setup.lanes,
            "video": "none",
        }
    )
    collect(CollectConfig(run=config, to="run"), folder)
    return folder


def cloning(setup: Benchmark, demos: Path, episodes: int, every: int, rate: float) -> TrainConfig:
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
            "lr": rate,
            "steps": LOOKS_AT_MOST * every,
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
            "eval_every": 30_000,
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
