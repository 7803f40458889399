"""Where tests find LIBERO: an interpreter that has it, and its data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "venvs" / "libero" / "bin" / "python"
DATA = Path(os.environ.get("HOCKET_LIBERO_DATA") or ROOT.parent / "shared" / "libero").absolute()
NEEDS_LIBERO = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PYTHON.exists(), reason="LIBERO's interpreter is missing: tools/make_venvs.sh libero"
    ),
    pytest.mark.skipif(
        not (DATA / "assets").is_dir(),
        reason="LIBERO's data is missing: set HOCKET_LIBERO_DATA",
    ),
]
