"""The folder of a run that nobody works on: its report is rebuilt, or it is cleared away where it
holds nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hocket.errors import RunFolderError
from hocket.records.folder import RunFolder
from hocket.records.ledger.schema import has_episodes
from hocket.records.ledger.view import LedgerView
from hocket.records.run_file import load_about
from hocket.results.page.report_page import write_report_page
from hocket.results.recorded import build_report
from hocket.results.report import Report, Throughput


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


def rebuild_report(folder: Path) -> Report:
    """The report of what a run's folder holds, whether the run is complete or not. It is kept in
    the folder, unless that cannot be written."""
    with LedgerView.open(folder) as ledger:
        try:
            throughput = Report.load(folder).throughput
        except RunFolderError:
            throughput = Throughput()
        report = build_report(ledger, load_about(folder), throughput)
    if os.access(folder, os.W_OK):
        report.save(folder)
        write_report_page(folder, report)
    return report
