"""ManiSkill 3 and SimplerEnv's port to it, as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.maniskill import WIDOWX, Simpler, SimplerConfig
from hocket.adapters.envs.maniskill.env import IMAGE_KEY
from hocket.core.data import Array
from hocket.records.folder import RunFolder
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import KeptStates
from hocket.results.recorded import open_recorded
from support.commands import command
from support.parts import ROOT, needs_venv, python_of
from support.processes import DEADLINE_S
from support.simpler_picker import STEPS, Picker

PYTHON = python_of("maniskill")
ASSETS = ROOT / "tests" / "fixtures" / "simpler"
CHECKS = [
    "numbers_conform",
    "pictures_conform",
    "tasks_are_what_the_port_says",
    "a_start_does_not_depend_on_the_episode_before",
    "nothing_is_grasped_at_a_start",
    "starts_count_round",
    "putting_back_changes_a_grasp",
    "controllers_wait_too",
    "mistakes_are_told",
    "without_vulkan_it_is_told_what_is_missing",
]
AROUND = {
    **os.environ,
    "MS_ASSET_DIR": str(ASSETS),
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), needs_venv("maniskill")]


def check(*words: str) -> None:
    script = ROOT / "tests" / "support" / "maniskill_checks.py"
    done = subprocess.run(
        [PYTHON, script, *words],
        env=AROUND,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds_in_the_real_simulator(name: str) -> None:
    check(name)


class Watching(Picker):
    """The same policy, which keeps what it is shown of each prompt."""

    spec = hocket.PolicySpec(chunk_length=STEPS, action_size=7)

    def __init__(self, pictures: dict[str, dict[int, Array]]) -> None:
        self._pictures = pictures

    def infer(self, batch: hocket.Batch) -> Array:
        for row, picture in zip(batch.rows, batch.arrays[IMAGE_KEY], strict=True):
            # By decision: a policy is asked more often, to warm it up.
            self._pictures.setdefault(row.prompt, {})[row.chunk] = picture.copy()
        return super().infer(batch)


def count_committed(folder: Path) -> int:
    if not RunFolder.at(folder).ledger.exists():
        return 0
    with LedgerView.open(folder) as ledger:
        return len(ledger.episodes())


def test_episodes_killed_and_resumed_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """Of a quarter of the starts; `STARTS=24` takes all 96."""
    starts = int(os.environ.get("STARTS", "6"))
    words = ("--env", "simpler:widowx", "--env-python", str(PYTHON), "--lanes", "2")
    words += ("--policy", "support.simpler_picker:Picker", "--video", "none")
    words += ("--episodes", str(starts))
    run = subprocess.Popen(
        command("eval", *words, "--out", str(tmp_path / "run")), cwd=tmp_path, env=AROUND
    )
    deadline = time.monotonic() + DEADLINE_S
    while count_committed(tmp_path / "run") < starts:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    run.send_signal(signal.SIGKILL)
    run.wait()
    resumed = command("resume", str(tmp_path / "run"))
    done = subprocess.run(resumed, cwd=tmp_path, env=AROUND, timeout=900, check=False)
    assert done.returncode == 0
    check("_plain_loop", str(tmp_path / "plain.npz"), str(starts))
    plain = np.load(tmp_path / "plain.npz")
    report = open_recorded(tmp_path / "run").report
    kept = KeptStates(tmp_path / "run")
    assert len(report.episodes) == starts * len(WIDOWX)
    assert report.complete
    for episode in report.episodes:
        name = f"{episode.trial.task}-{episode.trial.seed}"
        assert (episode.outcome is hocket.Outcome.SUCCESS) == plain[f"success-{name}"]
        np.testing.assert_array_equal(kept.load(episode), plain[name])
    for task in report.tasks:
        assert task.rate > 0.2


def test_what_a_policy_is_shown_is_what_a_plain_loop_shows_at_each_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(ASSETS))
    check("_plain_loop", str(tmp_path / "plain.npz"), "1")
    plain = np.load(tmp_path / "plain.npz")
    pictures: dict[str, dict[int, Array]] = {}
    watched = hocket.evaluate(
        env="simpler:widowx", policy=Watching(pictures), episodes=1, lanes=1, env_python=str(PYTHON)
    )
    assert watched.complete
    for info in Simpler("widowx", SimplerConfig()).tasks():
        shown = [picture for _, picture in sorted(pictures[info.prompt].items())]
        np.testing.assert_array_equal(shown, plain[f"{info.name}-images"])
