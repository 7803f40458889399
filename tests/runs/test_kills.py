"""kill -9 at random moments, then resume: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import hocket
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from support.processes import DEADLINE_S, children, wait_until

EPISODES = 60
ENV = {"step_s": 0.002}


def results(report: hocket.Report) -> list[tuple[str, str, int, float]]:
    return [(e.trial.id, e.outcome.value, e.steps, e.total_reward) for e in report.episodes]


def start(folder: Path, *, is_new: bool) -> subprocess.Popen[bytes]:
    arguments = ["resume", str(folder)]
    if is_new:
        arguments = ["eval", "--env", "toy:count", "--policy", "scripted", "--lanes", "3"]
        arguments += ["--episodes", str(EPISODES), "--env.step-s", "0.002", "--out", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "hocket", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_at_random(folder: Path, kills: int, rng: random.Random) -> tuple[int, int]:
    """Run the plan to its end through so many kills; how many hit the main process, a worker."""
    main = worker = 0
    while main + worker < kills:
        process = start(folder, is_new=not (folder / "ledger.sqlite").exists())
        wait_until((folder / "ledger.sqlite").exists)
        deadline = time.monotonic() + rng.uniform(0.0, 2.0)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        below = children(process.pid)
        if process.poll() is not None:
            # It ended before its kill: begin a new one with nothing run yet.
            return main, worker
        if below and rng.random() < 0.4:
            os.kill(rng.choice(below), signal.SIGKILL)
            worker += 1
            time.sleep(rng.uniform(0.0, 0.2))
        else:
            main += 1
        process.kill()
        process.wait(DEADLINE_S)
    return main, worker


def survive(tmp_path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    expected = results(
        hocket.evaluate(
            env="toy:count", policy="scripted", episodes=EPISODES, lanes=3, env_config=ENV
        )
    )
    done = 0
    runs = 0
    while done < kills:
        folder = tmp_path / f"run-{runs}"
        runs += 1
        done += sum(kill_at_random(folder, min(8, kills - done), rng))
        report = hocket.resume(folder)
        assert report.complete
        assert results(report) == expected
        steps = Counter(row["trial"] for row in load_steps(folder).to_pylist())
        assert steps == {e.trial.id: e.steps + 1 for e in report.episodes}
        with LedgerView.open(folder) as ledger:
            assert ledger.remaining() == []


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    survive(tmp_path, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forty_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    survive(tmp_path, kills=40, seed=2)


@pytest.mark.slow
def test_a_finished_run_resumes_to_nothing(tmp_path: Path) -> None:
    common = {"env": "toy:count", "policy": "scripted", "episodes": 3, "lanes": 2}
    first = hocket.evaluate(out=tmp_path / "a", **common)
    before = sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file())
    again = hocket.resume(tmp_path / "a")
    assert results(first) == results(again)
    assert sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file()) == before


def test_a_second_process_on_a_run_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, is_new=True)
    try:
        wait_until((folder / "ledger.sqlite").exists)
        second = subprocess.run(
            [sys.executable, "-m", "hocket", "resume", str(folder)],
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    assert second.returncode == 2
    assert str(process.pid) in second.stderr
