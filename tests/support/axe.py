"""axe-core, which finds what keeps people from using a page; from npm, by its name."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.chromium import Page
from support.parts import missing

_DEADLINE_S = 120.0
_SERIOUS = ("serious", "critical")
_FAULTS = """
axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations.map((one) =>
  [one.impact, one.id, one.nodes.slice(0, 3).map(({html, any}) =>
    [html.slice(0, 160), any.map(({message}) => message.slice(0, 160))])]))
"""


def fetch_axe(folder: Path) -> str:
    """Its script, fetched into a folder; skips a test where that cannot be."""
    npm = shutil.which("npm")
    words = [str(npm), "pack", "--silent", "axe-core"]
    try:
        if npm is None:
            raise FileNotFoundError("npm")
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=_DEADLINE_S)
    except (OSError, subprocess.SubprocessError):
        pytest.skip(missing("axe-core", "npm pack axe-core"))
    (packed,) = folder.glob("axe-core-*.tgz")
    with tarfile.open(packed) as file:
        found = file.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


def serious_faults(page: Page, axe: str) -> list[Any]:
    """What axe-core finds on a page that is serious or worse: impact, rule, and where."""
    page.ask(f"{axe}; 1")
    return [fault for fault in page.ask(_FAULTS) if fault[0] in _SERIOUS]
