"""Tests of `make quick` and a small evaluation on other Pythons, with the newest dependencies.

    python tools/pythons.py 3.10 3.13

Each gets an environment of its own, `.venv-3.10`, in which the newest versions that there are of
all dependencies are installed, whatever constraints.txt pins; torch is not among them. A Python
that is not found (on PATH, among pyenv's, or by PYTHON310) is told of; to find none is an error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hocket.system.venvs.build import find_python, variable_of  # noqa: E402

ALL = ("3.10", "3.11", "3.12", "3.13")
QUICK = ("core", "system", "engine", "workers", "results")
NEWEST = ("--upgrade", "--upgrade-strategy", "eager", "--prefer-binary", "-e", ".[dev]")
EVALUATION = (
    *("eval", "--env", "gym:Pendulum-v1,toy:image", "--policy", "random", "--episodes", "4"),
    *("--lanes", "2", "--seed", "0"),
)


def try_python(version: str, python: str) -> None:
    """Run both; raises where one fails."""
    began = time.monotonic()
    folder = ROOT / f".venv-{version}"
    bin_ = folder / "bin"
    if not (bin_ / "python").exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    _run(bin_ / "python", "-m", "pip", "install", "--quiet", *NEWEST)
    installed_s = time.monotonic() - began
    tests = ["-m", "pytest", "-n", "3", "--dist=worksteal", "-m", "not slow and not heavy"]
    # A folder of its own: where many runs share one, the next tidies it up under the others.
    with tempfile.TemporaryDirectory() as out:
        folders = [f"tests/{name}" for name in QUICK]
        _run(bin_ / "python", *tests, f"--basetemp={out}/tests", *folders)
        _run(bin_ / "hocket", *EVALUATION, "--out", f"{out}/run")
    print(f"Python {version}: {installed_s:.0f} s to install, {time.monotonic() - began:.0f} s.")


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def main(versions: list[str]) -> None:
    found = {version: find_python(version) for version in versions or ALL}
    failed = []
    for version, python in found.items():
        if python is None:
            print(f"Python {version} is not here; {variable_of(version)} may name it.")
            continue
        try:
            try_python(version, python)
        except subprocess.CalledProcessError as error:
            failed.append(f"Python {version}: {error}")
    if failed or not any(found.values()):
        sys.exit("\n".join(failed) or "No Python was found.")


if __name__ == "__main__":
    main(sys.argv[1:])
