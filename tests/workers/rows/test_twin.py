"""Resets in a second simulator: nobody waits for them, and nothing depends on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.data import Array, Trial
from hocket.core.wire import Ready
from hocket.engine.trials import TrialQueue
from hocket.workers.rows import begins
from hocket.workers.rows.twin import Twin
from support.processes import DEADLINE_S
from support.row_script import Script, ScriptedHost, Scripts
from support.row_toys import Echo, RowToys, TwinToy

ENV = "support.row_toys:RowToys"


def evaluate(way: str, out: Path | None = None, **settings: Any) -> hocket.Report:
    return hocket.evaluate(
        env=ENV,
        policy=Echo(),
        lanes=4,
        episodes=12,
        env_config={"way": way, "length_max": 20},
        retries=0,
        out=out,
        **settings,
    )


def results(report: hocket.Report) -> dict[str, Any]:
    return {e.trial.id: (e.outcome, e.steps, e.total_reward) for e in report.episodes}


@pytest.fixture
def reset_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every reset that may be made elsewhere is; the threads of all resets."""
    monkeypatch.setattr(begins, "APART", 1e-9)
    threads: list[str] = []
    plain = TwinToy.reset

    def reset(toy: TwinToy, *arguments: Any) -> None:
        threads.append(threading.current_thread().name)
        plain(toy, *arguments)

    monkeypatch.setattr(TwinToy, "reset", reset)
    return threads


def test_results_do_not_depend_on_where_rows_are_reset(reset_by: list[str]) -> None:
    RowToys.made.clear()
    assert results(evaluate("twin")) == results(evaluate("mask"))
    assert "hocket-resets" in reset_by
    assert [toy.is_closed for toy in RowToys.made[:2]] == [True, True]


def test_recordings_do_not_depend_on_where_rows_are_reset(
    tmp_path: Path, reset_by: list[str]
) -> None:
    from hocket.records.step_rows import load_steps

    def steps(way: str) -> dict[Any, Any]:
        evaluate(way, tmp_path / way)
        table = load_steps(tmp_path / way).to_pydict()
        keys = zip(table["trial"], table["step"], strict=True)
        rewards, actions = table["reward"], map(str, table["action"])
        return dict(zip(keys, zip(rewards, actions, strict=True), strict=True))

    assert steps("twin") == steps("mask")
    assert "hocket-resets" in reset_by


def test_a_reset_that_raises_elsewhere_is_told(
    reset_by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TwinToy.reset

    def reset(toy: TwinToy, *arguments: Any) -> None:
        if threading.current_thread().name == "hocket-resets":
            raise RuntimeError("No reset here.")
        plain(toy, *arguments)

    monkeypatch.setattr(TwinToy, "reset", reset)
    report = evaluate("twin")
    assert any("No reset here." in (episode.error or "") for episode in report.episodes)


class Patient(Script):
    """Resets in a second one take until they may end."""

    may_end = threading.Event()

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        if threading.current_thread().name == "hocket-resets":
            assert self.may_end.wait(DEADLINE_S)
        super().reset(rows, tasks, seeds)

    def take_rows(self, rows: Array, source: Script, source_rows: Array) -> None:
        for row in rows.tolist():
            self.did[row] = []


def test_rows_move_while_others_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.row_script.Script", Patient)
    Patient.may_end.clear()
    rig = ScriptedHost(4, ends=0.0)
    monkeypatch.setattr(begins, "APART", 1e-9)
    rig.begin([0, 1, 2])
    rig.begin([3])
    rig.execute([1, 2, 3], [np.zeros(50)] * 3, [0, 0, 0])
    rig.work(3.0)
    rig.begin([0], 1)
    rig.take()
    main = Scripts.made[0]
    before = len(main.masks)
    rig.work(20.0)
    assert len(main.masks) > before
    assert not [message for message in rig.take() if isinstance(message, Ready)]
    assert rig.host.due_s() == 0.0, "there is more to step"
    rig.discard(0, 1)
    rig.begin([0], 2)
    Patient.may_end.set()
    while not (ready := [message for message in rig.take() if isinstance(message, Ready)]):
        rig.work(1.0)
    assert (ready[0].lanes, ready[0].attempts) == ([0], [2])
    assert len(Scripts.made) == 2
    rig.host.close()


def collect(twin: Twin) -> None:
    until = time.monotonic() + DEADLINE_S
    while twin.is_busy and time.monotonic() < until:
        time.sleep(0.001)
    twin.collect()


def test_what_is_foreseen_is_reset_before_it_is_asked_for() -> None:
    toys = RowToys("", RowToys.Config(way="twin"))
    twin = Twin(lambda: toys.make_rows("walk", 4), 4)
    trials = [Trial("toys", "walk", seed) for seed in range(9)]
    queue = TrialQueue(trials)
    assert queue.take(0, None) == trials[0]
    twin.start([trials[0]], queue.ahead)
    collect(twin)
    assert sorted(twin.ready) == trials[:4]
    assert sorted(twin.ready.values()) == [0, 1, 2, 3]
    twin.start([], queue.ahead)
    assert not twin.is_called, "enough are ready"
    for trial in trials[:2]:
        del twin.ready[trial]
    assert [queue.take(0, None), queue.take(0, None)] == trials[1:3]
    twin.start([], queue.ahead)
    collect(twin)
    assert sorted(twin.ready) == trials[3:7], "what began meanwhile is not kept"
    twin.close()
