"""A recorded run in the formats that other tools read.

One module per format, each with a function from chosen episodes of a run to a file or a folder:
LeRobotDataset v3, HDF5 in robomimic's layout, Rerun, LeRobot's ``eval_info.json``, and a timeline
for Perfetto. All of them stream: one episode is in memory at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.core.plugins import did_you_mean
from hocket.errors import MissingExtraError, RunFolderError, UnknownNameError, UsageError
from hocket.runs.demonstrations.chosen import (
    Choice,
    ChosenRun,
    ExportConfig,
    Silent,
    Watcher,
    open_chosen,
)
from hocket.system.durable import publish, sync_folder, temporary

FORMATS = ("lerobot", "hdf5", "rerun", "eval_info", "perfetto")
"""Modules of this folder, each with a `write(run, out, config, watcher)`."""
_WITH_ERRORS = ("perfetto",)
"""Formats in which episodes that ended as errors have something to tell."""


def export_run(
    path: Path,
    to: str,
    out: Path,
    config: ExportConfig | None = None,
    watcher: Watcher | None = None,
) -> ChosenRun:
    """Write a run folder in a format of `FORMATS` to a path that does not exist yet."""
    config, watcher = config or ExportConfig(), watcher or Silent()
    if to not in FORMATS:
        raise UnknownNameError(
            f"There is no format {to!r}.{did_you_mean(to, FORMATS)} Known: {', '.join(FORMATS)}."
        )
    out = out.absolute()
    refuse_existing(out)
    choice = config.choice
    if to in _WITH_ERRORS and not choice.outcomes:
        choice = Choice(outcomes=("success", "failure", "finished", "error"), tasks=choice.tasks)
    run = open_chosen(path, choice)
    if run.unfinished:
        watcher.note(
            f"The run is not finished: {run.unfinished} of its {len(run.recorded.trials)} trials "
            f"have not ended and are not in the export."
        )
    importlib.import_module(f"{__name__}.{to}").write(run, out, config, watcher)
    return run


def require(module: str, package: str, what: str, *, extra: str) -> Any:
    """A module that a format needs; the error says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        if exc.name != module:
            raise RunFolderError(f"The package {module!r} cannot be imported: {exc}") from exc
        raise MissingExtraError(
            f"{what} the package {package!r}, which is not installed in {sys.executable}. Run: pip "
            f"install 'hocket[{extra}]'"
        ) from exc


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists: an export never writes over anything."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{str(path)!r} exists already. Give another --out, or remove it first.")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft to write to. It gets its name when all went well, and is deleted otherwise."""
    with _draft(path) as draft:
        yield draft
        publish(draft, path)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft as `new_file` gives it, for a folder."""
    with _draft(path) as draft:
        draft.mkdir()
        yield draft
        # Renaming a folder replaces an empty one without a word.
        refuse_existing(path)
        draft.rename(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A folder for what is needed only while the export goes on."""
    with _draft(beside.with_name(f"{beside.name}.scratch")) as folder:
        folder.mkdir()
        yield folder


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    refuse_existing(path)
    draft = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(draft)  # left by an export that was killed
        yield draft
    except OSError as exc:
        raise UsageError(f"The export to {str(path)!r} failed: {exc}.") from exc
    finally:
        with contextlib.suppress(OSError):
            _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
