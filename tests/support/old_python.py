"""A Python 3.8 with numpy and msgpack, and vla-eval's package beside a benchmark of the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.parts import missing, python_of

_BENCH = Path(__file__).with_name("old_bench.py")


def find_old_python() -> str | None:
    """Any interpreter of Python 3.8 that is found here."""
    if (found := shutil.which("python3.8")) is not None and _is_old(found):
        return found
    kept = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
    return next((str(path) for path in kept if _is_old(str(path))), None)


def _is_old(python: str) -> bool:
    words = [python, "-c", "import sys, venv; sys.exit(sys.version_info[:2] != (3, 8))"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def make_old_python(folder: Path) -> str:
    """The path of a 3.8 in `folder` with numpy and msgpack; skips where there is none to be had."""
    python = find_old_python()
    if python is None:
        pytest.skip(missing("python3.8", "install one, as pyenv does"))
    subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
    words = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "numpy", "msgpack"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(missing("python3.8", f"it gets no packages: {done.stderr.strip()[-300:]}"))
    return words[0]


def lay_out(folder: Path, name: str) -> Path:
    """A folder with vla-eval's package, whose one benchmark is that of the tests, by this name."""
    (package,) = python_of("vla-eval").parents[1].glob("lib/python*/site-packages/vla_eval")
    names = ("__init__.py", "_version.py", "specs.py", "types.py", "recording.py")
    names += ("benchmarks/__init__.py", "benchmarks/base.py")
    for each in names:
        (folder / "vla_eval" / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / each, folder / "vla_eval" / each)
    place = folder / "vla_eval" / "benchmarks" / name
    place.mkdir()
    (place / "__init__.py").touch()
    shutil.copy(_BENCH, place / "benchmark.py")
    return folder
