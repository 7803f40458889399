"""Small real runs to export, and what truly was at every step of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array, Episode
from hocket.exports import export_run
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.runs.demonstrations.chosen import ExportConfig
from hocket.runs.evaluation import evaluate
from hocket.testing.toy import CAMERAS, ToyConfig, ToySuite

TOY: dict[str, Any] = {"length_min": 5, "length_max": 19, "image_size": 24}
EPISODES = 7


def run_toy(folder: Path, task: str = "image", **settings: Any) -> Path:
    """A run of some episodes, interleaved on three lanes."""
    options: dict[str, Any] = {
        "episodes": EPISODES,
        "seed": 3,
        "lanes": 3,
        "video": "none",
        "env_config": TOY,
        **settings,
    }
    evaluate(env=f"toy:{task}", policy="scripted", out=folder, **options)
    return folder


def episodes_of(folder: Path) -> list[Episode]:
    with LedgerView.open(folder) as ledger:
        return ledger.episodes()


def truth(folder: Path, episode: Episode) -> dict[str, Array]:
    """Every observation of an episode, from an env that repeats the recorded actions."""
    task = episode.trial.task
    env = ToySuite(task, ToyConfig(**TOY)).make(task)
    actions = load_steps(folder, [episode.trial])["action"].to_pylist()[1:]
    seen = [env.reset(seed=episode.trial.seed)[0]]
    seen += [env.step(np.array(action, np.float32))[0] for action in actions]
    if task == "pixels":
        return {"observation/image": np.stack(seen)}
    keys = [key for key in ("state", *CAMERAS) if key in seen[0]]
    names = {key: key if "/" in key else f"observation/{key}" for key in keys}
    return {names[key]: np.stack([one[key] for one in seen]) for key in keys} | {
        "action": np.array(actions)
    }


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: dict[str, list[int]] = {}

    def stage(self, name: str, total: int) -> None:
        self.stages[name] = [0, total]

    def advance(self, name: str) -> None:
        self.stages[name][0] += 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def export(folder: Path, to: str, out: Path, **settings: Any) -> Notes:
    """Export, and give back what was told."""
    watcher = Notes()
    export_run(folder, to, out, ExportConfig(workers=1, **settings), watcher)
    return watcher
