"""Installs torch into an interpreter whose machine has no GPU, without CUDA's libraries.

    python tools/cpu_torch.py venvs/lerobot/bin/python torch==2.13.0

For Python 3.12 PyPI has torch for CUDA alone: 0.5 GB, and 2.2 GB of libraries beside it. Those
are left out, and each that torch needs to be loaded gets a stand-in, whose functions answer "no
device". `hocket venv` runs this in a checkout. Where torch is for CPUs already, where a GPU is seen
or no C compiler is found, nothing is changed but that pip installs torch.
"""

from __future__ import annotations

import ctypes.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100
"""CUDA's number for it; no library of CUDA's has it for a success."""
_OWN = re.compile(r"Requires-Dist: (nvidia|cuda|triton)")
_THEIRS = re.compile(r"(cu|nccl|nv)[A-Za-z]")
"""Names of CUDA's functions that have no version to tell their library by."""


def reason_against() -> str:
    """Why torch has to be installed whole; empty where it need not."""
    if platform.system() != "Linux":
        return "this is not Linux"
    if Path("/dev/nvidiactl").exists() or ctypes.util.find_library("cuda"):
        return "a GPU's driver is here"
    if not (shutil.which("cc") and shutil.which("readelf")):
        return "no C compiler is found (on Debian: apt-get install gcc)"
    return ""


def read(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def lacking(folder: Path) -> dict[str, dict[str, set[str]]]:
    """The shared libraries that torch's need and that are not there: of each, the names of the
    functions that are called, by their version."""
    found: dict[str, dict[str, set[str]]] = {}
    here = {path.name for path in folder.glob("*.so*")}
    for path in sorted(folder.glob("*.so*")):
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", read("readelf", "-dW", str(path)))
        absent = [name for name in needed if name not in here and not is_known(name)]
        if not absent:
            continue
        for name in absent:
            found.setdefault(name, defaultdict(set))
        library_of, file = {}, ""
        for line in read("readelf", "-VW", str(path)).splitlines():
            if match := re.search(r"Version: 1  File: (\S+)", line):
                file = match[1]
            elif match := re.search(r"Name: (\S+)  Flags:", line):
                library_of[match[1]] = file
        for line in read("readelf", "-W", "--dyn-syms", str(path)).splitlines():
            match = re.search(r" UND ([^\s@]+)(?:@(\S+))?", line)
            if match and library_of.get(match[2] or "") in absent:
                found[library_of[match[2]]][match[2]].add(match[1])
            elif match and not match[2] and _THEIRS.match(match[1]):
                found[absent[0]][""].add(match[1])  # whichever library has it
    return found


def is_known(name: str) -> bool:
    """True for a library that the system's linker finds."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def make(folder: Path, name: str, functions: dict[str, set[str]]) -> None:
    """Compile a shared library of this name, with these functions by their version."""
    with tempfile.TemporaryDirectory() as scratch:
        code, versions = Path(scratch, "code.c"), Path(scratch, "versions")
        every = sorted(set().union(*functions.values()))
        code.write_text("".join(f"int {each}(void) {{ return {NO_DEVICE}; }}\n" for each in every))
        versions.write_text(
            "".join(
                f"{v} {{ {'; '.join(sorted(names))}; }};\n" for v, names in functions.items() if v
            )
        )
        command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-o", str(folder / name), str(code)]
        command.append(f"-Wl,-soname,{name}")
        if versions.stat().st_size:
            command.append(f"-Wl,--version-script,{versions}")
        subprocess.run(command, check=True)


def main(python: str, requirement: str) -> None:
    if reason := reason_against():
        sys.stdout.write(f"torch is installed whole: {reason}\n")
        return
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", requirement], check=True)
    (site,) = Path(python).parents[1].glob("lib/python*/site-packages")
    missing = lacking(site / "torch" / "lib")
    for name, functions in missing.items():
        make(site / "torch" / "lib", name, functions)
    (about,) = site.glob("torch-*.dist-info/METADATA")
    kept = [line for line in about.read_text().splitlines(keepends=True) if not _OWN.match(line)]
    about.write_text("".join(kept))  # or pip would install what is left out
    subprocess.run([*pip, requirement], check=True)  # what else it needs
    works = (
        "import torch; assert not torch.cuda.is_available(); torch.ones(8, 8) @ torch.ones(8, 8)"
    )
    subprocess.run([python, "-c", works], check=True)
    sys.stdout.write(f"stand-ins for {len(missing)} shared libraries that only a GPU needs\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
