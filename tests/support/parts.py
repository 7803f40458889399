"""What tests of real simulators and peers need, and what becomes of one that lacks it: it is
skipped, unless `make test-all` says that nothing but what SKIP names may be."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "HOCKET_TESTS_SKIP"
"""Set, it names the parts whose tests may be skipped, and those of others fail."""
_REASONS = (re.compile(r"([\w.-]+) is missing: "), re.compile(r"could not import '(\w+)'"))


def python_of(name: str) -> Path:
    """The interpreter that `hocket venv` builds."""
    return ROOT / "venvs" / name / "bin" / "python"


def needs_venv(name: str) -> pytest.MarkDecorator:
    return needs(name, is_there=python_of(name).exists(), how=f"hocket venv {name}")


def needs(name: str, *, is_there: bool, how: str) -> pytest.MarkDecorator:
    """Skip a test where a part is missing; `how` says how to get it."""
    return pytest.mark.skipif(not is_there, reason=missing(name, how))


def missing(name: str, how: str) -> str:
    """The reason of a skip, in which the part is found again."""
    return f"{name} is missing: {how}"


def demand(report: Any) -> None:
    """Turn the report of a skipped test into that of a failed one, where its part may not be
    missing."""
    if VARIABLE not in os.environ or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2])
    name = next((found[1] for pattern in _REASONS if (found := pattern.search(reason))), None)
    if name is not None and name not in os.environ[VARIABLE].replace(",", " ").split():
        report.outcome = "failed"
        report.longrepr = f"{reason}; SKIP={name} leaves its tests out."
