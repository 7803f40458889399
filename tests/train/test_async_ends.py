"""Both sides of an asynchronous run end together, whatever ends one of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hocket.train.learner import checkpoint
from support.async_runs import end, learner_of, start
from support.processes import DEADLINE_S, children, wait_gone, wait_until


def has_checkpoint(run: Path) -> bool:
    return bool(checkpoint.checkpoints(run))


@pytest.mark.slow
def test_ctrl_c_ends_both_sides_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--mode", "async")
    try:
        wait_until(lambda: has_checkpoint(tmp_path / "run") or process.poll() is not None)
        pids = [process.pid, *children(process.pid)]
        assert len(pids) >= 3
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        wait_gone(pids)
        assert checkpoint.read_table(checkpoint.latest(tmp_path / "run") / "state.json")["version"]
    finally:
        end(process)


@pytest.mark.slow
def test_the_death_of_the_learner_ends_the_run_with_an_error(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--mode", "async")
    try:
        wait_until(lambda: has_checkpoint(tmp_path / "run") or process.poll() is not None)
        pids = children(process.pid)
        os.kill(learner_of(process.pid), signal.SIGKILL)
        wait_gone(pids)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
        assert "learner" in errors.splitlines()[-1]
    finally:
        end(process)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_after_kill_9_nothing_is_left_running_and_the_run_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, mode: str
) -> None:
    from hocket.cli import main
    from hocket.records.run_file import load_about, load_run, save_run

    run = tmp_path / "run"
    process = start(run, "--mode", mode)
    try:
        wait_until(lambda: has_checkpoint(run) or process.poll() is not None)
        pids = children(process.pid)
        process.kill()
        wait_gone(pids)
    finally:
        end(process)
    state = checkpoint.read_table(checkpoint.latest(run) / "state.json")
    config = load_run(run)
    steps = state["env_steps"] + 200
    save_run(run, {**config, "steps": steps}, about=load_about(run))
    assert main(["train", "--resume", str(run)]) == 0
    after = checkpoint.read_table(checkpoint.latest(run) / "state.json")
    assert after["version"] > state["version"]
    assert after["env_steps"] >= state["env_steps"] + 200
