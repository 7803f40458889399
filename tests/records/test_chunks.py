"""One row for each chunk of the episodes that count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesSealed,
)
from hocket.records.chunks import SCHEMA, ChunkRows, load_chunks
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import LedgerView, Segment
from hocket.records.parquet import digest_of, merge_segments

A = Trial(suite="toy", task="reach", seed=0)
B = Trial(suite="toy", task="reach", seed=1)


def began(trials: list[Trial], attempts: list[int]) -> AttemptsBegan:
    return AttemptsBegan(time=0.0, lanes=list(range(len(trials))), trials=trials, attempts=attempts)


def inferred(
    trials: list[Trial], attempts: list[int], chunks: list[int], *, batch: int, gave: bool = True
) -> BatchInferred:
    chunk = Chunk(actions=np.zeros((4, 2)), version=7, source="replica-1")
    return BatchInferred(
        time=batch + 0.4,
        batch=batch,
        began=batch + 0.2,
        ended=batch + 0.3,
        lanes=list(range(len(trials))),
        trials=trials,
        attempts=attempts,
        chunks=chunks,
        delivered=[chunk if gave else None] * len(trials),
        ready=[batch + 0.1] * len(trials),
        size=8,
    )


def executed(
    trials: list[Trial], attempts: list[int], chunks: list[int], *, time: float
) -> ChunksExecuted:
    count = len(trials)
    return ChunksExecuted(
        time=time,
        lanes=list(range(count)),
        trials=trials,
        attempts=attempts,
        chunks=chunks,
        steps=[4] * count,
        rewards=[np.ones(4)] * count,
        terminated=[False] * count,
        truncated=[False] * count,
        busy=[0.5] * count,
        observed=[0.25] * count,
        final=[None] * count,
    )


def ended(trial: Trial, attempt: int = 0, outcome: Outcome = Outcome.SUCCESS) -> Episode:
    return Episode(trial=trial, attempt=attempt, outcome=outcome, steps=4, total_reward=1.0)


def test_row_tells_a_chunk_from_request_to_execution(tmp_path: Path) -> None:
    rows = ChunkRows(leg=3)
    rows.on(began([A], [2]))
    rows.on(inferred([A], [2], [0], batch=5))
    rows.on(executed([A], [2], [0], time=6.0))
    path = tmp_path / "part.parquet"
    assert rows.write(path, [rows.take(ended(A, 2))]) == 1
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == [
        {
            "trial": "toy/reach/0",
            "attempt": 2,
            "leg": 3,
            "chunk": 0,
            "lane": 0,
            "requested": pytest.approx(5.1),
            "batched": pytest.approx(5.2),
            "inferred": pytest.approx(5.3),
            "delivered": pytest.approx(5.4),
            "executed": 6.0,
            "batch": 5,
            "batch_size": 8,
            "policy_version": 7,
            "source": "replica-1",
            "steps": 4,
            "busy_s": 0.5,
            "observe_s": 0.25,
        }
    ]


def test_interleaved_episodes_come_out_whole_and_in_order(tmp_path: Path) -> None:
    rows = ChunkRows()
    rows.on(began([A, B], [0, 0]))
    for i in range(3):
        rows.on(inferred([A, B], [0, 0], [i, i], batch=i))
        rows.on(executed([B, A], [0, 0], [i, i], time=i + 1.0))
    path = tmp_path / "part.parquet"
    rows.write(path, [rows.take(ended(B)), rows.take(ended(A))])
    table = pq.read_table(path)
    assert table["trial"].to_pylist() == [B.id] * 3 + [A.id] * 3
    assert table["chunk"].to_pylist() == [0, 1, 2] * 2
    assert table["executed"].to_pylist() == [1.0, 2.0, 3.0] * 2


def test_chunk_that_was_never_executed_has_no_time_of_execution(tmp_path: Path) -> None:
    rows = ChunkRows()
    rows.on(began([A], [0]))
    rows.on(inferred([A], [0], [0], batch=1))
    path = tmp_path / "part.parquet"
    rows.write(path, [rows.take(ended(A, outcome=Outcome.ERROR))])
    (row,) = pq.read_table(path).to_pylist()
    assert row["executed"] is None
    assert row["steps"] == 0


def test_chunk_executed_ahead_of_the_next_ones_delivery_stays_one_row(tmp_path: Path) -> None:
    rows = ChunkRows()
    rows.on(began([A], [0]))
    rows.on(inferred([A], [0], [0], batch=1))
    rows.on(inferred([A], [0], [1], batch=2))
    rows.on(executed([A], [0], [0], time=3.0))
    rows.on(executed([A], [0], [1], time=4.0))
    path = tmp_path / "part.parquet"
    assert rows.write(path, [rows.take(ended(A))]) == 2
    assert pq.read_table(path)["executed"].to_pylist() == [3.0, 4.0]


def test_rows_of_a_lost_attempt_are_forgotten(tmp_path: Path) -> None:
    rows = ChunkRows()
    rows.on(began([A], [0]))
    rows.on(inferred([A], [0], [0], batch=1))
    rows.on(AttemptFailed(time=2.0, lane=0, trial=A, attempt=0, error="it broke", again=True))
    rows.on(executed([A], [0], [0], time=2.0))
    rows.on(inferred([A], [0], [1], batch=2, gave=False))
    assert rows.write(tmp_path / "part.parquet", [rows.take(ended(A))]) == 0
    assert list(tmp_path.iterdir()) == []


def test_answer_that_was_not_delivered_has_no_row(tmp_path: Path) -> None:
    rows = ChunkRows()
    rows.on(began([A], [0]))
    rows.on(inferred([A], [0], [0], batch=1, gave=False))
    assert rows.write(tmp_path / "part.parquet", [rows.take(ended(A))]) == 0


def test_merged_segment_holds_the_rows_of_its_sources_in_order(tmp_path: Path) -> None:
    segments = []
    for seed in range(5):
        rows = ChunkRows()
        trial = Trial(suite="toy", task="reach", seed=seed)
        rows.on(began([trial], [0]))
        for i in range(seed):
            rows.on(inferred([trial], [0], [i], batch=i))
        path = tmp_path / f"part-{seed}.parquet"
        if count := rows.write(path, [rows.take(ended(trial))]):
            segments.append(Segment(path.name, count, 0, digest_of(path)))
    merged = tmp_path / "merged.parquet"
    assert merge_segments(merged, tmp_path, segments) == 10
    expected = [f"toy/reach/{seed}" for seed in range(5) for _ in range(seed)]
    assert pq.read_table(merged)["trial"].to_pylist() == expected


def test_rows_load_for_all_trials_or_some(tmp_path: Path) -> None:
    with Ledger.create(tmp_path, [A, B], {}) as ledger:
        ledger.attach(ChunkRows())
        assert load_chunks(tmp_path).num_rows == 0
        ledger.on(began([A, B], [0, 0]))
        ledger.on(inferred([A, B], [0, 0], [0, 0], batch=1))
        ledger.on(EpisodesSealed(time=3.0, episodes=[ended(A), ended(B)]))
        ledger.flush()
        assert load_chunks(tmp_path).num_rows == 2
        assert load_chunks(tmp_path, [B])["trial"].to_pylist() == [B.id]
        assert load_chunks(tmp_path, []).num_rows == 0
    with LedgerView.open(tmp_path) as view:
        assert [segment.rows for segment in view.segments("chunks")] == [2]
