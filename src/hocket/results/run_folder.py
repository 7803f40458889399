"""The folder of a run that nobody works on: its report is rebuilt, or it is cleared away where it
holds nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger.schema import has_episodes
from hocket.results.page.report_page import FILE_NAME as PAGE
from hocket.results.page.report_page import write_report_page
from hocket.results.recorded import open_recorded
from hocket.results.report import FILE_NAME, Report, read_report
from hocket.results.throughput import Throughput


def clear_unbegun(folder: Path) -> None:
    """Take away a run that was killed before any of its episodes had ended: it holds nothing that
    could be lost, and must not stop the same command. One that still goes on raises."""
    found = RunFolder.at(folder)
    if found.ledger.exists():
        with found.lock():
            remove_if_empty(folder)


def remove_if_empty(folder: Path) -> None:
    """Take away what a new run left that ended before any of its episodes did: whoever gives the
    command again shall not be told that its folder holds a run."""
    if has_episodes(RunFolder.at(folder).ledger):
        return
    for child in folder.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        else:
            child.unlink()
    folder.rmdir()


def rebuild_report(
    folder: Path, *, listed: bool = False, unless: Callable[[Throughput], Report] | None = None
) -> Report:
    """The report of what a run's folder holds, whether the run is complete or not. It is kept in
    the folder, unless that cannot be written, or the one that is kept says what `unless` gives
    for its throughput."""
    document, last = {}, Throughput()
    with contextlib.suppress(RunFolderError, KeyError, TypeError):
        document = read_report(folder / FILE_NAME)
        last = Throughput.from_json(document)
    if unless is not None and document.get("complete") and (folder / PAGE).exists():
        report = unless(last)
        if report.says(document, folder):
            return report
    run = open_recorded(folder, last=last)
    if os.access(folder, os.W_OK):
        run.report.save(folder, listed=listed)
        write_report_page(folder, run)
    return run.report
