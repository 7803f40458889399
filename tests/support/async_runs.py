"""Training in a process of its own, for tests that interrupt it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.processes import DEADLINE_S, children

TESTS = Path(__file__).parents[1]
SOURCES = TESTS.parent / "src"


def start(out: Path, *flags: str) -> subprocess.Popen[str]:
    """`hocket train` on the point, without an end."""
    command = [
        *(sys.executable, "-m", "hocket", "train", "--env", "support.point_env:make"),
        *("--policy", "actor", "--policy.chunk-length", "4", "--policy.hidden", "32", "32"),
        *("--steps", "100000000", "--batch", "8", "--lanes", "2", "--eval-every", "0"),
        *("--checkpoint-every", "50", "--out", str(out), *flags),
    ]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(TESTS)])},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def learner_of(pid: int) -> int:
    """The learner's process."""
    for child in children(pid):
        command = Path(f"/proc/{child}/cmdline")
        if command.exists() and b"hocket.train.learner.process" in command.read_bytes():
            return child
    raise LookupError("There is no learner.")


def end(process: subprocess.Popen[str]) -> None:
    """Whatever is left, by its own id."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
