"""What a Mac lacks is done without: eventfd, memory with seals, packets over sockets, affinity,
prctl and /proc. (It is hidden here, on Linux; on a Mac itself nothing of this was ever run.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_rooms import QUICK, TOY

TESTS = Path(__file__).parent
HIDDEN = str(TESTS / "support" / "without_linux")


def run(*arguments: str, path: str = HIDDEN) -> subprocess.CompletedProcess[str]:
    """Run Python where what Linux alone has is hidden, in whatever it starts too."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_it_is_hidden() -> None:
    names = ["eventfd", "memfd_create", "sched_getaffinity"]
    said = run(
        "-c",
        "import os, socket, ctypes\n"
        f"print([hasattr(os, name) for name in {names}],"
        " hasattr(socket, 'SOCK_SEQPACKET'), hasattr(ctypes.CDLL(None), 'prctl'),"
        " os.path.exists('/proc/self'))",
    )
    assert said.stdout == "[False, False, False] False False False\n", said.stderr


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_run_needs_nothing_of_it(tmp_path: Path, runtime: str) -> None:
    words = [*TOY[:-1], runtime, "--policy", "zero", "--out", str(tmp_path / "run")]
    done = run("-m", "hocket", *words)
    assert done.returncode == 0, done.stderr
    assert "overall" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_quick_tests_pass_without_it() -> None:
    done = run(
        *("-m", "pytest", "--numprocesses=2", "--dist=worksteal"),
        *("-m", "not slow and not heavy", *(f"tests/{folder}" for folder in QUICK)),
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 500


@pytest.mark.parametrize("verb", ["--help", "eval"])
def test_windows_is_told_of_wsl_in_one_sentence(verb: str) -> None:
    main = f"import sys; sys.platform = 'win32'\nfrom hocket.cli import main\nmain(['{verb}'])"
    done = run("-c", main, path="")
    assert done.returncode == 1
    assert done.stderr == (
        "hocket does not run on Windows itself: install it in WSL (wsl --install).\n"
    )
