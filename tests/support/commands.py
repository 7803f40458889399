"""The command line in a folder: as a process, or in this one where a process would show no more."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hocket.cli import main
from support.processes import DEADLINE_S


def command(*arguments: str) -> list[str]:
    """The words that start `hocket` as a process."""
    return [sys.executable, "-m", "hocket", *arguments]


def run_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a user sees: the exit code and all that reaches the process's own output."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same, without the start of an interpreter, which takes most of a short command's time."""
    out, errors = io.StringIO(), io.StringIO()
    with _inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code: object = main(arguments)
        except SystemExit as exc:
            code = exc.code
    assert code is None or isinstance(code, int), code
    return subprocess.CompletedProcess(arguments, code or 0, out.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """This process stands in the folder and finds its modules, which it forgets afterwards."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if folder in Path(getattr(module, "__file__", None) or "/").parents:
                del sys.modules[name]
