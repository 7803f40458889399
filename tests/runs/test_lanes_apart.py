"""Lanes of one run: neither prompts nor pictures of one reach another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.core.data import Outcome
from hocket.records.ledger.view import LedgerView
from hocket.results.report import Report
from hocket.runs.config import EvalConfig
from support.prompted_lanes import ONCE
from support.sites import attempts, run_here


def run(folder: Path, policy: str = "Reader", **settings: Any) -> Report:
    plain = {
        "env": ("support.prompted_lanes:Told",),
        "policy": f"support.prompted_lanes:{policy}",
        "episodes": 12,
        "lanes": 6,
        "video": "none",
    }
    return run_here(EvalConfig.from_plain({**plain, **settings}), folder)


def test_each_lane_is_told_and_shown_its_own(tmp_path: Path) -> None:
    report = run(tmp_path / "run")
    assert (report.overall.rate, report.overall.n) == (1.0, 12)


def test_a_policy_that_mixes_rows_up_is_seen(tmp_path: Path) -> None:
    report = run(tmp_path / "run", "ReadsTheFirst")
    assert (report.overall.rate or 0.0) < 1.0


def test_a_render_that_aborts_or_hangs_costs_one_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ONCE, str(tmp_path))
    env = ("support.prompted_lanes:BadRenderer",)
    report = run(tmp_path / "run", env=env, lanes=3, step_timeout_s=3.0)
    assert (report.overall.rate, report.overall.n) == (1.0, 12)
    lost = [error for *_, error in attempts(tmp_path / "run") if error]
    assert len(lost) == 2
    assert sorted("Hung" in error for error in lost) == [False, True]
    with LedgerView.open(tmp_path / "run") as ledger:
        assert {episode.outcome for episode in ledger.episodes()} == {Outcome.SUCCESS}


FRAMES = """
import hashlib, sys
import numpy as np
from hocket.adapters.envs.metaworld import MetaWorld

suites = {task: MetaWorld(task, MetaWorld.Config(size=48)) for task in sys.argv[1:]}
envs = {task: suite.make(suite.tasks()[0].name) for task, suite in suites.items()}
frames = {task: [env.reset(seed=7)[0]] for task, env in envs.items()}
for step in range(6):
    for task, env in envs.items():
        frames[task].append(env.step(np.full(4, 0.3 * (step % 3 - 1)))[0])
for task, seen in frames.items():
    images = b"".join(one["observation/image"].tobytes() for one in seen)
    print(task, hashlib.sha256(images).hexdigest())
"""


def frames(*tasks: str) -> dict[str, str]:
    # Another test may have left a variable that is for another renderer.
    env = {name: value for name, value in os.environ.items() if name != "PYOPENGL_PLATFORM"}
    words = [sys.executable, "-c", FRAMES, *tasks]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_two_simulators_in_one_process_show_what_each_shows_alone(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("metaworld")
    monkeypatch.setenv("MUJOCO_GL", backend)
    both = frames("drawer-open", "push")
    assert both == {**frames("drawer-open"), **frames("push")}
    assert len(set(both.values())) == 2
