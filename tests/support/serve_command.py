"""`hocket serve` as a process."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import DEADLINE_S as WAIT_S

TESTS = str(Path(__file__).parents[1])


@contextmanager
def command(*flags: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the place where it says that it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", "serve", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]),
            **variables,
        },
    )
    assert process.stderr is not None
    try:
        lines = ""
        deadline = time.monotonic() + WAIT_S
        while " on " not in lines:
            ready, _, _ = select.select([process.stderr], [], [], deadline - time.monotonic())
            assert ready, f"it never said that it serves: {lines}"
            line = process.stderr.readline()
            assert line, f"it ended: {lines}"
            lines += line
        yield process, re.findall(r" on (\S+)\n", lines)[-1]
    finally:
        process.kill()
        process.communicate()
