from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.data import Array, Outcome, Trial
from hocket.errors import EnvError, RunFolderError, UnknownNameError
from hocket.runs.checks.verify import RecordedNumbers, compare, find_trial, verify
from support.changed_states import change_states

DRIFT = '''
import os
import gymnasium
import numpy as np
from gymnasium import spaces


class Room(gymnasium.Env):
    """Behaves otherwise once there is a file of this name beside it."""

    observation_space = spaces.Dict({"state": spaces.Box(-9, 9, (2,), np.float64)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        return {"state": np.array([self.steps, 5.0 if os.path.exists("see") else 1.0])}

    def step(self, action):
        self.steps += 1
        reward = float(action[0]) + (0.25 if os.path.exists("pay") and self.steps == 3 else 0.0)
        if os.path.exists("break"):
            raise RuntimeError("the floor is wet")
        length = 6 if os.path.exists("end") else 9
        if os.path.exists("stay"):
            length = 12
        return self.look(), reward, self.steps >= length, False, {"success": False}
'''


def run_toy(folder: Path, **settings: Any) -> None:
    settings = {"episodes": 3, "lanes": 1, "video": "none", **settings}
    report = hocket.evaluate(env="toy:count", policy="random", out=folder, **settings)
    assert report.complete


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in an env that can be made to drift by creating files in the working folder."""
    (tmp_path / "drifting.py").write_text(DRIFT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "drifting", raising=False)
    hocket.evaluate(env="drifting:Room", policy="random", out=tmp_path / "run", episodes=2, lanes=1)
    return tmp_path


@pytest.mark.parametrize("with_policy", [False, True])
def test_the_same_trial_is_the_same_again(tmp_path: Path, with_policy: bool) -> None:
    run_toy(tmp_path / "run", replan=3, lanes=2)
    for seed in range(3):
        verdict = verify(tmp_path / "run", f"count/{seed}", with_policy=with_policy)
        assert verdict.difference is None, str(verdict)
        assert str(verdict).startswith(f"identical: {verdict.steps} steps")
        assert verdict.compared["action"] == verdict.steps
        assert verdict.compared["simulator state"] == verdict.steps + 1
        assert verdict.compared["observation/state"] > verdict.steps / 4


@pytest.mark.slow
def test_metaworld_is_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    hocket.evaluate(
        env="metaworld:reach",
        policy="random",
        out=tmp_path / "run",
        episodes=1,
        lanes=2,
        max_steps=20,
        video="none",
    )
    verdict = verify(tmp_path / "run", "reach-v3/0")
    assert verdict.difference is None, str(verdict)
    assert verdict.steps == 20


def test_the_first_difference_of_the_simulator_is_found(tmp_path: Path) -> None:
    run_toy(tmp_path / "run")

    def push(states: Array) -> None:
        states[7:, 0] += 4.0

    change_states(tmp_path / "run", "toy:count/count/1", push)
    difference = verify(tmp_path / "run", "toy:count/count/1").difference
    assert difference is not None
    assert (difference.step, difference.key, difference.max_abs) == (7, "simulator state[0]", 4.0)
    assert float(difference.recorded) == float(difference.again) + 4.0


@pytest.mark.parametrize(
    ("drift", "step", "key"),
    [
        ("pay", 3, "reward"),
        ("end", 6, "terminated"),
        ("stay", 9, "terminated"),
        ("see", 0, "observation/state[1]"),
    ],
)
def test_an_env_that_drifts_is_caught_at_its_step(
    room: Path, drift: str, step: int, key: str
) -> None:
    assert verify(room / "run", "Room/1").difference is None
    (room / drift).touch()
    difference = verify(room / "run", "Room/1").difference
    assert difference is not None
    assert (difference.step, difference.key) == (step, key)


def test_an_env_that_breaks_when_run_again_says_so(room: Path) -> None:
    (room / "break").touch()
    with pytest.raises(EnvError, match=r"cannot be run again(.|\n)*the floor is wet"):
        verify(room / "run", "Room/0")


def test_nothing_is_left_in_the_run_folder(room: Path) -> None:
    before = sorted(path for path in (room / "run").rglob("*") if "sqlite" not in path.name)
    verify(room / "run", "Room/0")
    after = sorted(path for path in (room / "run").rglob("*") if "sqlite" not in path.name)
    assert after == before


def test_a_trial_is_found_by_id_folder_or_the_end_of_its_id() -> None:
    trials = [Trial(suite=s, task="push", seed=seed) for s in "ab" for seed in (1, 11)]
    assert find_trial(trials, "a/push/1") == trials[0]
    assert find_trial(trials, "b-push-11") == trials[3]
    with pytest.raises(UnknownNameError, match="2 trials end in 'push/1'"):
        find_trial(trials, "push/1")
    with pytest.raises(UnknownNameError, match="Did you mean 'a/push/11'"):
        find_trial(trials, "a/pusch/11")


def test_a_run_without_numbers_cannot_be_verified(tmp_path: Path) -> None:
    run_toy(tmp_path / "run", record="none")
    with pytest.raises(RunFolderError, match="--record none"):
        verify(tmp_path / "run", "count/0")


def test_a_trial_that_ended_as_an_error_has_nothing_to_compare(tmp_path: Path) -> None:
    faults = {"raise_at": 5, "fault_seed": 1}
    run_toy(tmp_path / "run", env_config=faults, retries=0)
    assert verify(tmp_path / "run", "count/0").difference is None
    with pytest.raises(RunFolderError, match=r"ended as an error(.|\n)*broke at step 5"):
        verify(tmp_path / "run", "count/1")


def test_nan_equals_nan_and_nothing_else() -> None:
    trial = Trial(suite="a", task="b", seed=0)

    def episode(reward: float) -> RecordedNumbers:
        row = {"action": None, "terminated": False, "truncated": False, "success": None}
        return RecordedNumbers(rows=[{**row, "reward": reward}], states=None, observed=[{}])

    assert compare(trial, episode(np.nan), episode(np.nan)).difference is None
    difference = compare(trial, episode(np.nan), episode(1.0)).difference
    assert difference is not None
    assert (difference.recorded, difference.again) == ("nan", "1.0")


def test_outcomes_of_a_verified_run_are_untouched(room: Path) -> None:
    report = hocket.Report.load(room / "run")
    assert [episode.outcome for episode in report.episodes] == [Outcome.FAILURE] * 2
