"""A run folder is opened by one process if its ledger is ours; what does not count is swept."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.records.ledger import schema
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import LedgerView
from support.synthetic_run import ENDED, QUICK, began, episode_of, failed, plan, sealed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def ledger(root: Path) -> Iterator[Ledger]:
    with Ledger.create(root, plan(6), {"policy": "toy", "seeds": [1, 2]}, config=QUICK) as made:
        yield made


# -- who may open it -----------------------------------------------------------------------------


def test_second_ledger_on_a_folder_is_refused(ledger: Ledger, root: Path) -> None:
    with pytest.raises(RunFolderError, match="in use by process"):
        Ledger.open(root)
    ledger.close()
    Ledger.open(root).close()


def test_other_process_is_refused_and_told_who_writes(ledger: Ledger, root: Path) -> None:
    code = f"from hocket.records.ledger.ledger import Ledger; Ledger.open({str(root)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "RunFolderError" in done.stderr
    assert "in use by process" in done.stderr


def test_run_is_not_created_over_another(ledger: Ledger, root: Path) -> None:
    ledger.close()
    with pytest.raises(RunFolderError, match="holds a run already"):
        Ledger.create(root, plan(1), {})
    with LedgerView.open(root) as view:
        assert view.trials() == plan(6)


def test_folder_without_a_run_is_refused(root: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        Ledger.open(root)
    root.mkdir()
    with pytest.raises(RunFolderError, match="no run in"):
        Ledger.open(root)
    with pytest.raises(RunFolderError, match="no run in"):
        LedgerView.open(root)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_foreign_file_is_refused_and_kept(root: Path, content: bytes) -> None:
    root.mkdir()
    (root / "ledger.sqlite").write_bytes(content)
    with pytest.raises(RunFolderError, match="is no ledger"):
        Ledger.open(root)
    with pytest.raises(RunFolderError, match="holds a run already"):
        Ledger.create(root, plan(1), {})
    assert (root / "ledger.sqlite").read_bytes() == content


def test_sqlite_file_of_another_program_is_refused(root: Path) -> None:
    root.mkdir()
    connection = sqlite3.connect(root / "ledger.sqlite")
    connection.execute("CREATE TABLE trials (id)")
    connection.close()
    with pytest.raises(RunFolderError, match="no ledger of hocket's"):
        Ledger.open(root)


def test_truncated_ledger_is_refused_and_kept(root: Path) -> None:
    Ledger.create(root, plan(2000), {}).close()
    path = root / "ledger.sqlite"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    kept = path.read_bytes()
    for opener in (Ledger.open, LedgerView.open):
        with pytest.raises(RunFolderError, match="ledger"):
            opener(root)
    assert path.read_bytes() == kept


@pytest.mark.parametrize("number", [formats.RUN.number - 1, formats.RUN.number + 1])
def test_ledger_of_another_format_is_refused_in_words_and_kept(root: Path, number: int) -> None:
    Ledger.create(root, plan(2), {}).close()
    path = root / "ledger.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    before = path.read_bytes()
    for opener in (Ledger.open, LedgerView.open):
        with pytest.raises(RunFolderError, match=rf"a run of format {number}.* Run it again"):
            opener(root)
    assert path.read_bytes() == before
    assert [path.name for path in root.glob("ledger*")] == ["ledger.sqlite"]


def test_ledger_of_a_killed_run_is_read_where_nothing_can_be_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.create(root, plan(3), {}, config=QUICK).close()
    # What a killed process leaves: committed rows that are in the WAL alone.
    with contextlib.closing(sqlite3.connect(root / "ledger.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO meta VALUES ('late', '1')")
        connection.commit()
        killed = tmp_path / "killed"
        killed.mkdir()
        for name in ("ledger.sqlite", "ledger.sqlite-wal"):
            shutil.copy(root / name, killed / name)
    # Root may write anywhere, and would not see what this is about.
    monkeypatch.setattr(schema.os, "access", lambda *_: False)
    before = sorted((path.name, path.read_bytes()) for path in killed.iterdir())
    with LedgerView.open(killed) as view:
        assert view.meta() == {"late": 1}
        assert view.trials() == plan(3)
    assert sorted((path.name, path.read_bytes()) for path in killed.iterdir()) == before


def test_view_reads_while_a_run_is_written(ledger: Ledger, root: Path) -> None:
    with LedgerView.open(root) as view:
        for i, trial in enumerate(plan(6)):
            ledger.on(began(trial))
            ledger.on(sealed(episode_of(trial, 0)))
            ledger.flush()
            assert len(view.episodes()) == i + 1


def test_closed_ledger_leaves_one_file_that_can_be_copied(ledger: Ledger, root: Path) -> None:
    ledger.on(began(*plan(6)))
    ledger.on(sealed(*[episode_of(trial, 0) for trial in plan(6)]))
    ledger.close()
    ledger.close()
    copy = root.parent / "copy"
    copy.mkdir()
    shutil.copy(root / "ledger.sqlite", copy)
    with LedgerView.open(copy) as view:
        assert len(view.episodes()) == 6


# -- sweeping ------------------------------------------------------------------------------------


def test_sweep_deletes_exactly_what_does_not_count(ledger: Ledger, root: Path) -> None:
    done, lost, never = plan(3)
    ledger.on(began(done, lost))
    ledger.on(failed(done, 0, again=True))
    ledger.on(began(done, attempt=1))
    kept = f"episodes/{done.slug}/1/front.mp4"
    ledger.on(sealed(episode_of(done, 1, [kept, f"episodes/{done.slug}/1/own.rows"])))
    ledger.on(ENDED)
    waste = [
        f"episodes/{done.slug}/0/front.mp4",
        f"episodes/{done.slug}/1/.front.mp4.tmp",
        f"episodes/{done.slug}/1/steps.rows",
        f"episodes/{lost.slug}/0/front.mp4",
        "chunks/part-0000-000001.parquet",
        "steps/.part-0000-000002.parquet.tmp",
        ".report.json.tmp",
    ]
    treasure = [
        kept,
        f"episodes/{done.slug}/1/own.rows",
        f"episodes/{done.slug}/1/rendered-later.mp4",
        f"episodes/{lost.slug}/notes.txt",
        "episodes/of-somebody-else/0/file",
        "chunks/mine.csv",
        "run.yaml",
    ]
    for name in waste + treasure:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    ledger.close()
    with Ledger.open(root) as again:
        deleted = again.sweep()
        assert again.sweep() == []
    assert [name for name in waste if (root / name).exists()] == []
    assert [name for name in treasure if not (root / name).exists()] == []
    assert {str(path.relative_to(root)) for path in deleted} == {
        *(name for name in waste if not name.endswith("/0/front.mp4")),
        f"episodes/{done.slug}/0",
        f"episodes/{lost.slug}/0",
    }
    assert not (root / "episodes" / never.slug).exists()
