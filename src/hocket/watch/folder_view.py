"""The runs in a folder, each in a line: does it go on, how far is it, how often does it succeed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.errors import HocketError
from hocket.records.folder import RunFolder
from hocket.records.run_file import load_run
from hocket.results.showing.live import is_alive, read_status
from hocket.watch.cells import Cells, plain_rate
from hocket.watch.training import METRICS, Curves

_MOST_RUNS = 500
"""Runs that are listed; of more, those that were written last."""


def is_run(folder: Path) -> bool:
    """True if a folder is a run's: of an evaluation, a collection or of training."""
    return RunFolder.at(folder).ledger.exists() or (folder / METRICS).exists()


class FolderView:
    """Lists the runs in a folder, also those a level further down, as a file of jobs makes them.
    It is shown as a run's view is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lines: list[dict[str, Any]] = []
        self._known: dict[str, tuple[Any, dict[str, Any]]] = {}
        """A run's line, and when its files were written as it was made."""

    def names(self) -> dict[str, Path]:
        """The runs by name, those that were written last first. A link that leads out of the folder
        is no run of it."""
        home = self.root.resolve()
        found: list[tuple[float, str, Path]] = []
        for path in _folders(self.root):
            if is_run(path) and path.resolve().is_relative_to(home):
                with contextlib.suppress(OSError):
                    name = path.relative_to(self.root).as_posix()
                    found.append((_written(path), name, path))
        newest = sorted(found, reverse=True)[:_MOST_RUNS]
        return {name: path for _, name, path in newest}

    def snapshot(self) -> dict[str, Any]:
        return {"kind": "runs", "name": self.root.name, "runs": self._lines}

    def poll(self) -> dict[str, Any] | None:
        """Read the folder again; None where nothing has changed."""
        before, self._lines = self._lines, self._read()
        return {"again": True} if before != self._lines else None

    def close(self) -> None: ...

    def _read(self) -> list[dict[str, Any]]:
        """A line for each run."""
        lines = []
        for name, path in self.names().items():
            status = read_status(path)
            alive = is_alive(status, time.time())
            stamp = (_written(path), alive)
            if name not in self._known or self._known[name][0] != stamp:
                self._known[name] = (stamp, _line(name, path, alive=alive))
            line = self._known[name][1]
            left_s = (status or {}).get("left_s") if alive else None
            lines.append({**line, "left_s": left_s})
        return lines


def _folders(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for child in root.iterdir():
            if child.is_dir() and not child.name.startswith("."):
                yield child
                if not is_run(child):
                    with contextlib.suppress(OSError):
                        yield from (one for one in child.iterdir() if one.is_dir())


def _written(path: Path) -> float:
    ledger = RunFolder.at(path).ledger
    files = (ledger, ledger.with_name(f"{ledger.name}-wal"), path / METRICS, path / "report.json")
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _line(name: str, path: Path, *, alive: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"name": name, "alive": alive, "written": _written(path)}
    with contextlib.suppress(HocketError):
        config = load_run(path)
        env = config.get("env") or ()
        line["env"] = env if isinstance(env, str) else ", ".join(str(one) for one in env)
        line["policy"] = str(config.get("policy", ""))
    try:
        if RunFolder.at(path).ledger.exists():
            line |= _counted(path)
        else:
            curves = Curves(path)
            curves.update()
            line |= {"training": curves.about(), "evaluations": curves.all()["evaluations"][-1:]}
    except (HocketError, OSError) as exc:
        line["error"] = str(exc)
    return line


def _counted(path: Path) -> dict[str, Any]:
    with contextlib.closing(Cells(path)) as cells:
        cells.update()
        rate, planned = cells.rate(), len(cells.plan)
        done = sum(sum(of.values()) for of in cells.counts)
    return {"planned": planned, "done": done, "errors": rate.errors, "rate": plain_rate(rate)}
