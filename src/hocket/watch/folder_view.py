"""The runs in a folder: what each was of, does it go on, how often does it succeed.

A line is made once, and again when the run's files have changed. Of a run that has ended it is made
of `report.json`, without its episodes: to read the run.yaml of a thousand takes a minute.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.run_file import load_about, load_run
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.page.compare_page import compare_data
from hocket.results.report import FILE_NAME as REPORT
from hocket.results.showing.live import is_alive, read_status
from hocket.watch.cells import Cells, plain_rate
from hocket.watch.training import METRICS, Curves

Line = dict[str, Any]
_MOST_RUNS = 5000
"""Runs that are listed; of more, those that were written last."""
_POLL_S, _AT_ONCE_S = 2.0, 0.4
"""Seconds between two readings, and those after which what was read is told."""
_MOST_PAIRED = 100
"""Runs that are compared with one at once."""
_SPARKS = ("eval/success", "train/success")
"""The curves of a training run that its line has."""


def is_run(folder: Path) -> bool:
    """True if a folder is a run's: of an evaluation, a collection or of training."""
    return RunFolder.at(folder).ledger.exists() or (folder / METRICS).exists()


class FolderView:
    """Lists the runs in a folder, also those a level further down, as a file of jobs makes them.
    It is shown as a run's view is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[Any, Line]] = {}
        """A run's line, and when its files were written as it was made."""
        self._unread = 0

    @property
    def poll_s(self) -> float:
        """Seconds until there is more to read."""
        return 0.0 if self._unread else _POLL_S

    def names(self) -> dict[str, Path]:
        """The runs by name, those that were written last first. A link that leads out of the folder
        is no run of it."""
        home = self.root.resolve()
        found: list[tuple[float, str, Path]] = []
        for path in _folders(self.root):
            if path.resolve().is_relative_to(home):
                with contextlib.suppress(OSError):
                    name = path.relative_to(self.root).as_posix()
                    found.append((_written(path), name, path))
        newest = sorted(found, reverse=True)[:_MOST_RUNS]
        return {name: path for _, name, path in newest}

    def snapshot(self) -> dict[str, Any]:
        return self._told([line for _, line in self._known.values()])

    def poll(self) -> dict[str, Any] | None:
        """Read the folder again; the lines that have changed, None where none has."""
        names, before, changed = self.names(), self._unread, list[Line]()
        gone = [name for name in self._known if name not in names]
        for name in gone:
            del self._known[name]
        until = time.monotonic() + _AT_ONCE_S
        self._unread = 0
        for name, path in names.items():
            status = read_status(path)
            alive = is_alive(status, time.time())
            stamp = (_written(path), alive, (status or {}).get("left_s") if alive else None)
            if name in self._known and self._known[name][0] == stamp:
                continue
            if time.monotonic() > until:
                self._unread += 1
                continue
            self._known[name] = (stamp, _line(name, path, status, alive=alive))
            changed.append(self._known[name][1])
        is_news = changed or gone or before != self._unread
        return {**self._told(changed), "gone": gone} if is_news else None

    def _told(self, lines: Sequence[Line]) -> dict[str, Any]:
        return {"kind": "runs", "name": self.root.name, "unread": self._unread, "runs": lines}

    def compare(self, a: str, b: str) -> dict[str, Any]:
        """Two runs against each other, by the test of `hocket compare`."""
        names = self.names()
        if not {a, b} <= names.keys():
            raise RunFolderError(f"There is no run {a!r} or {b!r} in {self.root}.")
        found = compare_runs(Side.open(names[a]), Side.open(names[b]), common=True)
        return {**compare_data(found), "kind": "compared", "runs": [a, b]}

    def against(self, pinned: str, some: Sequence[str]) -> dict[str, Any]:
        """How much more often runs succeed than one of them, on the trials that both have ended."""
        names, found = self.names(), dict[str, Any]()
        if pinned in names:
            with contextlib.closing(Cells(names[pinned])) as base:
                base.update()
                for name in [one for one in some if one in names][:_MOST_PAIRED]:
                    found[name] = _compared(names[name], base)
        return {"kind": "against", "pinned": pinned, "runs": found}

    def close(self) -> None: ...


def _compared(path: Path, base: Cells) -> dict[str, Any] | None:
    try:
        with contextlib.closing(Cells(path)) as cells:
            cells.update()
            return cells.compared(base)
    except HocketError:
        return None


def _folders(root: Path) -> Iterator[Path]:
    """The folders that are runs."""
    with contextlib.suppress(OSError):
        for child in root.iterdir():
            if child.name.startswith(".") or not child.is_dir():
                continue
            if is_run(child):
                yield child
            else:
                with contextlib.suppress(OSError):
                    yield from (one for one in child.iterdir() if one.is_dir() and is_run(one))


def _written(path: Path) -> float:
    ledger = RunFolder.at(path).ledger
    files = (ledger, ledger.with_name(f"{ledger.name}-wal"), path / METRICS, path / REPORT)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _line(name: str, path: Path, status: Mapping[str, Any] | None, *, alive: bool) -> Line:
    told = status or {}
    line: Line = {"name": name, "alive": alive, "written": _written(path)}
    line |= {"began": told.get("began"), "host": told.get("host")}
    line["left_s"] = told.get("left_s") if alive else None
    try:
        if not alive and (report := _report_of(path)) is not None:
            return line | _reported(report)
        line["code"] = load_about(path).get("code")
        with contextlib.suppress(HocketError):
            line["config"] = load_run(path)
        if RunFolder.at(path).ledger.exists():
            return line | _counted(path)
        curves = Curves(path)
        curves.update()
        found = curves.all()
        line |= {"training": curves.about(), "evaluations": found["evaluations"][-1:]}
        line["points"] = {name: found["points"].get(name, []) for name in _SPARKS}
    except (HocketError, OSError, ValueError) as exc:
        line["error"] = str(exc)
    return line


def _report_of(path: Path) -> dict[str, Any] | None:
    """A report without its episodes; None where the ledger was written since, or there is none."""
    file, ledger = path / REPORT, RunFolder.at(path).ledger
    wal = ledger.with_name(f"{ledger.name}-wal")
    try:
        written = file.stat().st_mtime
        is_old = any(
            each.stat().st_mtime > written + 1.0
            for each in (ledger, wal)
            if each.exists() and each.stat().st_size
        )
        if is_old:
            return None
        data = file.read_bytes()
        begin, end = data.find(b'\n "episodes": '), data.rfind(b'\n "throughput": ')
        found = json.loads(data[:begin] + data[end:] if 0 < begin < end else data)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "overall" in found else None


def _reported(report: Mapping[str, Any]) -> Line:
    overall = report["overall"]
    done = overall["n"] + overall["errors"]
    rate = {"value": overall["rate"], "interval": overall["interval"]}
    rate["n"] = overall["n"] - overall.get("finished", 0)
    counts = {"planned": report.get("planned", done), "done": done, "errors": overall["errors"]}
    return {
        "config": report.get("config"),
        "code": report.get("provenance", {}).get("code"),
        "rate": rate,
        **counts,
    }


def _counted(path: Path) -> Line:
    with contextlib.closing(Cells(path)) as cells:
        cells.update()
        rate, planned = cells.rate(), len(cells.plan)
        done = sum(sum(of.values()) for of in cells.counts)
    return {"planned": planned, "done": done, "errors": rate.errors, "rate": plain_rate(rate)}
