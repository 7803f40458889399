"""Rows that come to the ledger with an episode's last message, and not in files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import hocket
from hocket.records.file_rows import FileRows
from hocket.records.folder import RunFolder
from hocket.testing.scripted import ScriptedConfig, ScriptedPolicy
from hocket.workers.sinks import spill
from hocket.workers.sinks.spill import leave_rows


def run(folder: Path) -> list[tuple[str, ...]]:
    """The steps of a run of toys, whose env has states too."""
    hocket.evaluate(
        env="toy:count",
        policy=ScriptedPolicy("", ScriptedConfig(chunk_length=4)),
        lanes=2,
        episodes=6,
        out=folder,
        video="none",
        progress=False,
    )
    rows = []
    for table in ("steps", "states"):
        for segment in sorted(RunFolder.at(folder).table(table).glob("*.parquet")):
            rows += [tuple(map(str, row.values())) for row in pq.read_table(segment).to_pylist()]
    return sorted(rows)


def test_rows_are_the_same_with_files_and_without_and_no_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = run(tmp_path / "streamed")
    assert streamed
    # No bytes fit into the memory that is there for them: the parent writes files.
    monkeypatch.setattr(FileRows, "receive", lambda *_: False)
    assert run(tmp_path / "filed") == streamed
    for name in ("streamed", "filed"):
        assert not list(RunFolder.at(tmp_path / name).episodes.rglob("*.rows"))


def test_what_is_too_long_for_a_message_becomes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MAX_PIECE", 100)
    taken: dict[str, bytes] = {}
    assert leave_rows(tmp_path / "a" / "steps.rows", bytes(100), taken) == []
    path = tmp_path / "a" / "states.rows"
    assert leave_rows(path, bytes(101), taken) == [str(path)]
    assert taken == {"steps.rows": bytes(100)}
    assert path.read_bytes() == bytes(101)
