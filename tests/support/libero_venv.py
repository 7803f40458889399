"""Where tests find LIBERO: an interpreter that has it, and its data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.parts import ROOT, needs, needs_venv, python_of

PYTHON = python_of("libero")
DATA = Path(os.environ.get("HOCKET_LIBERO_DATA") or ROOT.parent / "shared" / "libero").absolute()
NEEDS_LIBERO = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_venv("libero"),
    needs("libero", is_there=(DATA / "assets").is_dir(), how="set HOCKET_LIBERO_DATA to its data"),
]
