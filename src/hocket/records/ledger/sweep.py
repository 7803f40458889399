"""Deletes what a killed run left: files of attempts that never counted, and unfinished ones.

Only what hocket itself made is touched: folders named by a planned trial and a number, segments
by their pattern, temporary files by their suffix.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from hocket.records.folder import ROWS, TEMPORARY, disk_error
from hocket.records.ledger.view import LedgerView

TABLES = ("chunks", "steps")


def sweep(ledger: LedgerView) -> list[Path]:
    """Delete the waste of a run and list it. Nobody else may be writing to the folder."""
    deleted: list[Path] = []
    try:
        for path in (*_unfinished(ledger.folder.root), *_unnamed(ledger), *_uncounted(ledger)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            deleted.append(path)
            _remove_empty_trial(path, ledger.folder.episodes)
    except OSError as exc:
        raise disk_error(exc, ledger.folder.root) from exc
    return deleted


def _unfinished(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f".*{TEMPORARY}")


def _unnamed(ledger: LedgerView) -> Iterator[Path]:
    """Segments whose episodes were never committed, or that a merge replaced."""
    for table in TABLES:
        place = ledger.folder.table(table)
        named = {segment.name for segment in ledger.segments(table)}
        yield from _unfinished(place)
        for path in place.glob("part-*.parquet"):
            if f"{table}/{path.name}" not in named:
                yield path


def _uncounted(ledger: LedgerView) -> Iterator[Path]:
    """Folders of attempts without an episode; unfinished and used-up files of the others."""
    if not ledger.folder.episodes.is_dir():
        return
    counted = {episode.trial: episode for episode in ledger.episodes()}
    for trial in ledger.trials():
        place = ledger.folder.episodes / trial.slug
        if not place.is_dir():
            continue
        episode = counted.get(trial)
        for attempt in [path for path in place.iterdir() if path.name.isdecimal()]:
            if episode is None or int(attempt.name) != episode.attempt:
                yield attempt
                continue
            for path in attempt.iterdir():
                name = str(path.relative_to(ledger.folder.root))
                is_waste = path.suffix in (TEMPORARY, ROWS) and name not in episode.files
                if is_waste and path.is_file():
                    yield path


def _remove_empty_trial(deleted: Path, episodes: Path) -> None:
    """A trial's folder goes with the last of its attempts."""
    for place in (deleted.parent, deleted.parent.parent):
        if episodes in place.parents and not any(place.iterdir()):
            place.rmdir()
