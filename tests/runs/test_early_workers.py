"""Workers start, and make their envs, while a policy of another interpreter loads."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.cli import main
from hocket.errors import ConfigError, EnvError, HocketError, PolicyUnavailableError
from hocket.exports.collect import CollectConfig, collect
from hocket.runs.checks.check import run_check
from hocket.runs.config import EvalConfig
from support.processes import DEADLINE_S, wait_gone

CODE = """
import os, time
from pathlib import Path
import numpy as np
import hocket
from gymnasium import Env, spaces

PLACE = Path(os.environ["PLACE"])

def wait_for(name):
    until = time.monotonic() + float(os.environ["PATIENCE"])
    while not (PLACE / name).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{name} never came")
        time.sleep(0.01)

def tell(name):
    (PLACE / name).write_text(str(os.getpid()))

class Meets(Env):
    observation_space = spaces.Box(-9, 9, (1,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float64)
    max_steps = 3
    metadata = {"render_fps": 10}

    def __init__(self):
        wait_for("loading")
        with (PLACE / "built").open("a") as file:
            file.write("x")
        tell("made")

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        return np.zeros(1), 1.0, True, False, {"success": True}

    def close(self): ...

class Breaks(Meets):
    def __init__(self):
        wait_for("loading")
        raise OSError("no assets here")

class BreaksOnce(Meets):
    def __init__(self):
        super().__init__()
        if len((PLACE / "built").read_text()) == 1:
            raise OSError("not today")

class Policy:
    spec = hocket.PolicySpec(chunk_length=1, action_size=1)

    def __init__(self):
        tell("loading")
        wait_for("made")

    def infer(self, batch):
        return np.zeros((len(batch.rows), 1, 1))

    def close(self): ...

class Refuses(Policy):
    def __init__(self):
        super().__init__()
        raise OSError("no weights here")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "meeting.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PATIENCE", str(DEADLINE_S))
    monkeypatch.delitem(sys.modules, "meeting", raising=False)
    return tmp_path


def config(**settings: Any) -> EvalConfig:
    plain = {"env": ("meeting:Meets",), "policy": "meeting:Policy", "episodes": 4, "lanes": 2}
    known = {"policy_python": sys.executable, "video": "none"}
    return EvalConfig.from_plain({**plain, **known, **settings})


def evaluate(folder: Path, **settings: Any) -> None:
    report = hocket.evaluate(out=folder, **vars_of(config(**settings)))
    assert (report.overall.n, report.overall.rate) == (4, 1.0)


def vars_of(chosen: EvalConfig) -> dict[str, Any]:
    return {key: value for key, value in chosen.to_plain().items() if value is not None}


def check(folder: Path) -> None:
    assert not run_check(config()).problems


def collects(folder: Path) -> None:
    assert collect(CollectConfig(run=config(), to="run"), folder).episodes == 4


def train(folder: Path) -> None:
    words = ["train", "--env", "meeting:Meets", "--policy", "meeting:Policy", "--residual"]
    words += ["--policy-python", sys.executable, "--steps", "16", "--batch", "8", "--lanes", "2"]
    assert main([*words, "--reward", "env", "--out", str(folder)]) == 0


VERBS: dict[str, Callable[[Path], None]] = {
    "eval in workers": evaluate,
    "eval in this process": lambda folder: evaluate(folder, lanes=1),
    "eval in as many lanes as pay": lambda folder: evaluate(folder, lanes="auto"),
    "check": check,
    "collect": collects,
    "train": train,
}


@pytest.mark.parametrize("verb", VERBS)
def test_envs_are_made_while_the_policy_loads(verb: str, tmp_path: Path) -> None:
    # Each waits for the other: one after the other, neither would ever be there.
    VERBS[verb](tmp_path / "run")


def test_the_workers_that_started_early_are_those_that_run(tmp_path: Path) -> None:
    evaluate(tmp_path / "run", lanes=3)
    assert (tmp_path / "built").read_text() == "xxx"


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_env_that_cannot_be_made_ends_the_policy_that_loads(lanes: int, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="no assets here"):
        evaluate(tmp_path / "run", env=("meeting:Breaks",), lanes=lanes)
    wait_gone([int((tmp_path / "loading").read_text())])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_policy_that_cannot_be_loaded_ends_the_workers(lanes: int, tmp_path: Path) -> None:
    with pytest.raises(PolicyUnavailableError, match="no weights here"):
        evaluate(tmp_path / "run", policy="meeting:Refuses", lanes=lanes)
    made = int((tmp_path / "made").read_text())
    if made != os.getpid():
        wait_gone([made])


def test_a_folder_that_is_no_dataset_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no LeRobot dataset"):
        run_check(config(), data=tmp_path)
    assert not (tmp_path / "loading").exists()


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_env_that_fails_once_is_made_again(lanes: int, tmp_path: Path) -> None:
    evaluate(tmp_path / "run", env=("meeting:BreaksOnce",), lanes=lanes)


def test_ctrl_c_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.workers.early import EarlyWorkers

    def interrupted(_: EarlyWorkers) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EarlyWorkers, "look", interrupted)
    with contextlib.suppress(HocketError), pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path / "run")
