"""Isaac Lab itself, with Newton on a CPU, in an interpreter of its own."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.parts import ROOT, needs_venv, python_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_venv("isaaclab")]

CHECKS = [
    "cartpole_keeps_the_rules_of_batched_simulators",
    "arm_keeps_the_rules_of_batched_simulators",
    "arm_waits_at_random",
    "terms_and_events_of_a_user_wait",
    # To import Isaac Lab takes as long as each of these.
    "what_is_ambiguous_is_refused lost_contacts_end_the_run_in_words "
    "stand_in_does_as_isaac_lab_does",
]


@pytest.mark.parametrize("checks", CHECKS)
def test_in_isaac_labs_interpreter(checks: str) -> None:
    script = ROOT / "tests" / "support" / "isaac_checks.py"
    done = subprocess.run(
        [str(python_of("isaaclab")), str(script), *checks.split()],
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout.endswith("done\n")


def commands(verb: str) -> list[str]:
    """The commands of the page that name an env of `examples/`."""
    text = (ROOT / "docs" / "batched.md").read_text()
    return re.findall(rf"^hocket {verb} --env isaaclab:isaac_\w+:make.*$", text, re.MULTILINE)


def run(folder: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in a folder that has the examples."""
    for module in (ROOT / "examples").glob("isaac_*.py"):
        shutil.copy(module, folder)
    words = command.replace("../venvs", str(ROOT / "venvs")).split()
    done = subprocess.run(
        [sys.executable, "-m", *words, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_the_page_shows_two_envs() -> None:
    assert len(commands("eval")) == 2


@pytest.mark.parametrize("command", commands("eval"))
def test_examples_run_as_they_are_shown(command: str, tmp_path: Path) -> None:
    done = run(tmp_path, command, "--episodes", "3", "--out", "run", "--json")
    report = json.loads(done.stdout)
    assert report["overall"]["errors"] == 0
    assert "put back to a snapshot" in done.stderr


def test_episodes_are_collected_and_policies_trained_as_it_is_shown(tmp_path: Path) -> None:
    (collect,), (clone, improve) = commands("collect"), commands("train")
    run(tmp_path, collect, "--max-steps", "40")
    for command, name, learnt in (
        (clone, "cloned", "learn/cloning_loss"),
        (improve, "improved", "learn/kl"),
    ):
        run(tmp_path, command, "--max-steps", "40", "--steps", "320", "--eval-episodes", "1")
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        *_, update = [told for told in map(json.loads, lines) if told["kind"] == "update"]
        # The first update of ppo trains the critic alone.
        assert math.isfinite(update[learnt])
