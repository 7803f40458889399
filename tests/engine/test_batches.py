"""Which actions go to which lanes, without an engine."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.core.data import Chunk, Chunks, Trial, noise_seed
from hocket.engine.chunk_rules import ChunkRule, ReplayFirst, TemporalEnsemble, make_rule
from hocket.engine.dispatch import Delay, PendingBatch, Rows
from hocket.engine.inferring.policy_thread import Answered, Job
from hocket.engine.trials import LaneState
from hocket.errors import ChunkShapeError, PolicyError

COUNT = 4


def pending(rule: ChunkRule | None = None) -> PendingBatch:
    states = [
        LaneState(Trial("s", "t", seed), 0, rule or ReplayFirst(2), 0, 0.0, "run")
        for seed in range(COUNT)
    ]
    return PendingBatch((10, 11, 12, 13), states, Rows(states), [0.0] * COUNT)


def answer(
    batch: PendingBatch, errors: dict[int, Exception] | None = None, length: int = 5
) -> Answered:
    values = np.arange(COUNT * length * 2, dtype=np.float32).reshape(COUNT, length, 2)
    whole = Chunks(values, 3, "here", {"value": np.arange(COUNT)})
    job = Job(number=1, queue=0, rows=batch.rows, views=(), action_size=2)
    if not errors:
        return Answered(job, 0.0, 1.0, whole, [None] * COUNT)
    chunks: list[Chunk | None] = [None if i in errors else whole[i] for i in range(COUNT)]
    return Answered(job, 0.0, 1.0, chunks, [errors.get(i) for i in range(COUNT)])


def test_a_whole_answer_goes_out_as_one_array() -> None:
    batch = pending()
    running = dict(zip(batch.lanes, batch.states, strict=True))
    found = Delay().answered(answer(batch), batch, running, 0.0)
    assert found.lanes == batch.lanes
    assert isinstance(found.actions, np.ndarray)
    assert found.actions.shape == (COUNT, 2, 2)
    singly = Delay().dispatch(answer(batch), batch, range(COUNT))
    np.testing.assert_array_equal(found.actions, np.stack(singly.actions))
    assert [chunk.extras["value"] for chunk in found.delivered if chunk] == [0, 1, 2, 3]


@pytest.mark.parametrize("shared", [True, False])
def test_a_lane_whose_attempt_ended_gets_nothing(shared: bool) -> None:
    batch = pending(None if shared else TemporalEnsemble(0.0))
    running = dict(zip(batch.lanes, batch.states, strict=True))
    running[12] = pending().states[2]  # its next attempt
    del running[13]
    found = Delay().answered(answer(batch), batch, running, 0.0)
    assert list(found.lanes) == [10, 11]
    assert [chunk is None for chunk in found.delivered] == [False, False, True, True]
    assert not found.failed


def test_an_error_costs_its_own_row() -> None:
    batch = pending()
    running = dict(zip(batch.lanes, batch.states, strict=True))
    found = Delay().answered(answer(batch, {2: PolicyError("no")}), batch, running, 0.0)
    assert list(found.lanes) == [10, 11, 13]
    assert [(lane, str(error)) for lane, _, error in found.failed] == [(12, "no")]


def test_a_chunk_too_short_for_the_rule_is_told_of_every_row() -> None:
    batch = pending()
    running = dict(zip(batch.lanes, batch.states, strict=True))
    found = Delay().answered(answer(batch, length=1), batch, running, 0.0)
    assert not found.lanes
    assert [type(error) for _, _, error in found.failed] == [ChunkShapeError] * COUNT


def test_rows_are_made_when_they_are_asked_for() -> None:
    states = [
        LaneState(Trial("s", "t", seed), 1, make_rule(None, None)(), 0, 0.0, "run")
        for seed in (4, 5)
    ]
    states[1].chunk = 6
    rows = Rows(states)
    states[1].chunk = 7  # moves on; what was asked for does not
    assert [row.chunk for row in rows] == [0, 6]
    assert rows[1].noise_seed == noise_seed(Trial("s", "t", 5), 6)
    assert rows[1].session == "s/t/5@1 of run"
    assert rows[1] is rows[1]
    assert [row.trial.seed for row in rows[1:]] == [5]
