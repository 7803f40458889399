"""Processes that this one has started."""

from __future__ import annotations

import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], wait_s: float) -> None:
    """Wait so many seconds for a child to end by itself, then end it by force."""
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
