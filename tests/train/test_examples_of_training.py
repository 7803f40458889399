"""The scripts in examples/ that collect, clone, correct and improve, as they stand there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import DEADLINE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ("correct_two_goals", "ppo_two_goals", "rlpd_two_goals")


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.sh").read_text().splitlines()) <= 40


@pytest.mark.timeout(20 * DEADLINE_S)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != SCRIPTS[0])) for name in SCRIPTS],
)
def test_an_example_does_better_than_whoever_does_not_read(tmp_path: Path, name: str) -> None:
    # The program `hocket` of this interpreter, whatever the shell would find.
    tool = tmp_path / "hocket"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m hocket "$@"\n')
    tool.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", f"{name}.sh", str(tmp_path / "runs")],
        cwd=EXAMPLES,
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=19 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trained = "corrected" if name == SCRIPTS[0] else "improved"
    lines = (tmp_path / "runs" / trained / "metrics.jsonl").read_text().splitlines()
    rates = [one["eval/success"] for one in map(json.loads, lines) if one["kind"] == "eval"]
    assert max(rates) > 0.5
