"""From a weak clone of an expert to a good policy: start and end on the same unseen trials.

    python benchmarks/training/learning.py --task window-close-v3 --algo ppo --mode sync \\
        --out /tmp/x

Clones MetaWorld's expert ever better, until the clone succeeds in 20 to 50 % of some trials;
trains it; then measures start and end deterministically on 100 other trials that neither cloning,
nor training, nor the choice of the best checkpoint ever saw. Writes result.json and the curve.
A clone that lies in the folder already (clone.npz, clone.json) is taken as it is, so that several
runs can begin with the same one.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

import hocket
from hocket.adapters.envs.metaworld import MetaWorld
from hocket.adapters.policies.reference import (
    CHUNK_LENGTH,
    STATE_KEY,
    Network,
    features,
    pack,
)
from hocket.core import machine
from hocket.train.config import TrainConfig
from hocket.train.loop import train

MAX_STEPS = 200
CHOOSING_SEED, TEST_SEED, DEMONSTRATION_SEED = 6000, 5000, 8000


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What to learn, and how."""

    out: Path
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


def demonstrate(task: str, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """States and the expert's next chunk, from undisturbed episodes."""
    from metaworld.policies import ENV_POLICY_MAP

    warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
    env = MetaWorld(task, MetaWorld.Config(max_steps=10_000)).make(task)
    env.use_cameras(())
    expert = ENV_POLICY_MAP[task]()
    states, chunks = [], []
    for episode in range(episodes):
        env.reset(seed=DEMONSTRATION_SEED + episode)
        seen, done, left = [], [], 2 * CHUNK_LENGTH
        while left and len(done) < MAX_STEPS + CHUNK_LENGTH:
            seen.append(env.observe()[STATE_KEY])
            done.append(np.clip(expert.get_action(seen[-1]), -1, 1).astype(np.float32))
            success = env.advance(done[-1])[3]["success"]
            left -= bool(success or left < 2 * CHUNK_LENGTH)
        for first in range(len(done) - CHUNK_LENGTH):
            states.append(seen[first])
            chunks.append(np.stack(done[first : first + CHUNK_LENGTH]))
    env.close()
    return np.array(states), np.array(chunks, np.float32)


def clone(task: str, episodes: int, updates: int, out: Path) -> Path:
    """A network fitted to a few episodes, as a weights file of the policy `reference`."""
    torch.manual_seed(0)
    states, chunks = demonstrate(task, episodes)
    seen = features(states)
    mean, scale = seen.mean(0), np.maximum(seen.std(0), 0.02)
    inputs = torch.from_numpy((seen - mean) / scale)
    targets = torch.from_numpy(chunks.reshape(len(chunks), -1))
    sizes = [inputs.shape[1], 256, 256, 256, targets.shape[1]]
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(updates):
        pick = torch.randint(len(inputs), (256,))
        loss = (network(inputs[pick]) - targets[pick]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    linears = [m for m in network if isinstance(m, torch.nn.Linear)]
    pairs = tuple((m.weight.detach().numpy(), m.bias.detach().numpy()) for m in linears)
    path = out / "clone.npz"
    np.savez(path, **pack({task: Network(mean=mean, scale=scale, layers=pairs)}))
    return path


def measure(
    task: str, policy: str, config: dict[str, str], *, seed: int, trials: int, lanes: int
) -> dict[str, object]:
    report = hocket.evaluate(
        env=f"metaworld:{task}",
        policy=policy,
        episodes=trials,
        seed=seed,
        lanes=lanes,
        env_config={"max_steps": MAX_STEPS},
        policy_config=config,
    )
    return report.overall.to_json()


WEAKEST_FIRST = (
    *((1, updates) for updates in (*range(10, 24, 2), 30, 60, 120, 400)),
    *((episodes, 400) for episodes in (2, 4, 8, 16, 32)),
)
"""Demonstrations, and updates of the fit."""


def weak_clone(setup: Benchmark) -> tuple[Path, str]:
    """The weights of a clone that is neither hopeless nor good, and how it was made."""
    made = setup.out / "clone.json"
    if made.exists():
        return setup.out / "clone.npz", json.loads(made.read_text())["recipe"]
    for episodes, updates in WEAKEST_FIRST:
        path = clone(setup.task, episodes, updates, setup.out)
        found = measure(
            setup.task,
            "reference",
            {"weights": str(path)},
            seed=CHOOSING_SEED,
            trials=30,
            lanes=setup.lanes,
        )
        recipe = f"{episodes} demonstrations, {updates} updates"
        print(f"clone of {recipe}: {found['rate']:.0%}", flush=True)
        if 0.2 <= found["rate"] <= 0.5:
            made.write_text(json.dumps({"recipe": recipe, "rate": found["rate"]}))
            return path, recipe
    raise SystemExit("No clone succeeds in between 20 and 50 % of trials.")


def learn(setup: Benchmark, weights: Path) -> float:
    """Train with what `hocket train` does by default, but for `changes`; returns the seconds."""
    config = TrainConfig.from_plain(
        {
            "env": f"metaworld:{setup.task}",
            "env_config": {"max_steps": MAX_STEPS},
            "policy": "reference",
            "policy_config": {"weights": str(weights)},
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
    weights, recipe = weak_clone(setup)
    test = {"seed": TEST_SEED, "trials": setup.trials, "lanes": setup.lanes}
    start = measure(setup.task, "reference", {"weights": str(weights)}, **test)
    seconds = learn(setup, weights)
    end = measure(setup.task, str(setup.out / "run" / "best"), {}, **test)
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
