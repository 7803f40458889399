"""Interpreters that have some packages of this one, and nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from support.parts import ROOT, python_of

SIMULATORS = ("numpy", "gymnasium", "cloudpickle", "farama_notifications", "typing_extensions")
"""What a gymnasium env needs."""
TORCH = ("torch", "torchgen", "sympy", "networkx", "jinja2", "markupsafe", "mpmath", "fsspec")


def interpreter(folder: Path, *packages: str) -> str:
    """The path of a new interpreter in `folder` with these packages of ours."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    (site,) = (folder / "lib").glob("python*/site-packages")
    for package in packages:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        libraries = source.with_name(f"{package}.libs")
        for path in (source, libraries):
            if path.exists():
                (site / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def with_packages_of(folder: Path, *venvs: str) -> str:
    """The path of a new interpreter in `folder` with torch, hocket, and all that stands in venvs
    of `hocket venv`; what the first of them has comes first."""
    python = interpreter(folder, *TORCH)
    (site,) = (folder / "lib").glob("python*/site-packages")
    others = [next(python_of(n).parents[1].glob("lib/python*/site-packages")) for n in venvs]
    places = [*others, *(ROOT / part for part in ("src", "tests"))]
    (site / "others.pth").write_text("".join(f"{place}\n" for place in places))
    return python
