"""Rows that cannot wait for each other step together or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

import hocket
from hocket.core.data import Array
from hocket.core.wire import Ready
from support.row_script import ScriptedHost, Scripts


class InTurns:
    """It infers two rows at a time, so that some have a chunk before others."""

    spec = hocket.PolicySpec(chunk_length=4, action_size=1, max_batch=2)

    def infer(self, batch: hocket.Batch) -> Array:
        return np.zeros((batch.size, 4, 1))

    def close(self) -> None: ...


@pytest.mark.parametrize("lanes", [1, 3, 5])
@pytest.mark.parametrize("replan", [None, 3])
def test_no_row_moves_while_another_waits_and_none_is_reset_beside_one_that_moves(
    tmp_path: Path, lanes: int, replan: int | None
) -> None:
    """The simulator raises where one does."""
    report = hocket.evaluate(
        env="support.together:Together",
        policy=InTurns(),
        episodes=13,
        lanes=lanes,
        replan=replan,
        out=tmp_path / "run",
    )
    assert report.complete
    assert report.overall.errors == 0
    assert [episode.steps for episode in sorted(report.episodes, key=lambda e: e.trial.seed)] == [
        3 + seed % 7 for seed in range(13)
    ]
    about = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["about"]
    assert about["suspension"] == {"support.together:Together": "together"}


def test_while_one_row_waits_for_its_chunk_none_moves() -> None:
    host = ScriptedHost(3, way="together", ends=0.0)
    host.begin([0, 1])
    assert host.work(), "two rows have begun, and the third is given nothing"
    host.execute([0], [np.zeros(4)], [0])
    assert not host.work()
    assert host.host.due_s() is None
    host.execute([1], [np.zeros(2)], [0])
    assert host.work(awaits_all=True)
    assert Scripts.made[0].masks == [[0, 1]] * 2


def test_a_row_that_ended_begins_again_once_none_has_an_episode() -> None:
    host = ScriptedHost(2, way="together", ends=0.0)
    host.begin([0, 1])
    host.work()
    host.discard(0, 0)
    host.begin([0], attempt=1)
    host.execute([1], [np.zeros(3)], [0])
    host.work()
    assert Scripts.made[0].masks == [[1]] * 3
    assert [m.lanes for m in host.take() if isinstance(m, Ready)] == [[0, 1]]
    host.discard(1, 0)
    host.work()
    assert [m.attempts for m in host.take() if isinstance(m, Ready)] == [[1]]
