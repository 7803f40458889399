"""The pictures in the docs are what `tools/page_pictures.py` makes of the page as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.chromium import BINARY
from support.parts import ROOT, needs
from support.processes import DEADLINE_S

LARGEST = 120_000


@pytest.mark.slow
@needs("chromium", is_there=BINARY is not None, how="apt-get install chromium")
def test_each_picture_of_the_docs_is_made_and_small(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    script = ROOT / "tools" / "page_pictures.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=10 * DEADLINE_S)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"pictures/(\w+\.webp)", page.read_text())
    }
    assert {path.name for path in tmp_path.iterdir()} >= named >= {"episode.webp", "runs.webp"}
    for name in named:
        assert (tmp_path / name).read_bytes()[8:12] == b"WEBP"
        assert (tmp_path / name).stat().st_size < LARGEST
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < LARGEST
