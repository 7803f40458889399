"""A process that has no room for its libraries says so."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from support.processes import DEADLINE_S

pytestmark = pytest.mark.heavy

PLAN = ["plan", "--lanes", "2", "--cores", "2", "--execute-s", "0.1", "--latency", "50"]


def run_within(megabytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hocket", *PLAN],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20,) * 2),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize("megabytes", [120, 300])
def test_limit_that_is_too_low_is_told_in_words(megabytes: int) -> None:
    done = run_within(megabytes)
    assert done.returncode == 2
    assert f"limited to {megabytes} MiB (ulimit -v)" in done.stderr
    assert "Traceback" not in done.stderr


def test_limit_with_room_is_no_matter() -> None:
    assert run_within(64 << 10).returncode == 0
