"""The code that travels to a far end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hocket.workers.remote.archive import code_archive


def test_the_archive_runs_by_itself_and_brings_all_that_it_imports(tmp_path: Path) -> None:
    code = tmp_path / "code.zip"
    code.write_bytes(code_archive())
    words = [sys.executable, "-I", str(code), "ws", "0"]
    done = subprocess.run(words, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert "There is no key: set HOCKET_KEY." in done.stderr, done.stderr
    assert done.returncode == 2
