"""Resets that wait for each other, without sleeping: time is an argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.core.wire import Begin, Ready
from hocket.workers.rows.begins import LONGEST, WaitingResets
from support.row_script import Script, ScriptedHost, Scripts


def begin(*lanes: int, attempt: int = 0, final: bool = False) -> Begin:
    count = len(lanes)
    trials = [("suite", "task", lane, 0) for lane in lanes]
    return Begin(lanes, [attempt] * count, trials, [0] * count, final, [{}] * count)


def resets(*calls: tuple[int, float]) -> WaitingResets:
    made = WaitingResets()
    for rows, seconds in calls:
        made.took(rows, seconds)
    return made


def test_what_a_call_costs_beside_its_rows_is_learnt() -> None:
    assert resets((64, 5.0)).setup_s == 0.0, "one call may have compiled something"
    assert resets((64, 1.0), (1, 1.0), (8, 1.0)).setup_s == pytest.approx(1.0)
    assert resets((64, 6.4), (1, 0.1), (8, 0.8)).setup_s == pytest.approx(0.0)
    assert resets((64, 60.0), (2, 1.2), (4, 1.4), (3, 1.3)).setup_s == pytest.approx(1.0)


def test_rows_are_reset_when_they_have_waited_for_as_long_as_that_holds_up_others() -> None:
    made = resets((4, 1.0), (4, 1.0))
    made.add(begin(0), 0.0)
    assert made.due_s(6, (), 0.0) == pytest.approx(6.0)
    made.add(begin(1, 2), 2.0)
    assert made.due_s(6, (), 2.0) == pytest.approx(4.0 / 3)
    assert made.due_s(5, [(2.4, 4)], 2.0) == pytest.approx((5 - 4 * 0.4 - 2.0) / 3)
    assert made.due_s(0, (), 2.0) == 0.0, "nobody is held up"
    assert made.due_s(1000, (), 1.0) == pytest.approx(LONGEST - 1.0)


def test_those_that_waited_begin_in_one_call_without_what_was_dropped() -> None:
    made = resets()
    made.add(begin(0, 1), 0.0)
    made.add(begin(2, 3, attempt=4), 1.0)
    made.drop([1, 3], [0, 3])
    (message,) = made.take()
    assert (message.lanes, message.attempts) == ([0, 2, 3], [0, 4, 4])
    assert [trial[2] for trial in message.trials] == [0, 2, 3]
    assert not made


def test_a_row_to_be_reset_waits_for_others_where_that_holds_up_those_that_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ScriptedHost(4, ends=0.0)
    plain = Script.reset

    def slow(script: Script, *arguments: Any) -> None:
        rig.seconds += 20.0
        plain(script, *arguments)

    monkeypatch.setattr(Script, "reset", slow)
    rig.begin(range(4))
    (made,) = Scripts.made
    rig.begin([0], 1)
    rig.execute([1, 2, 3], [np.zeros(500)] * 3, [0, 0, 0])
    rig.work(5.0)
    rig.take()
    rig.discard(0, 1)
    rig.begin([0], 3)
    assert not [message for message in rig.take() if isinstance(message, Ready)]
    steps = len(made.masks)
    while not (ready := [message for message in rig.take() if isinstance(message, Ready)]):
        rig.work(1e9)
    assert (ready[0].lanes, ready[0].attempts) == ([0], [3])
    assert len(made.masks) > steps, "the others moved on meanwhile"
    assert made.masks[-1] == [1, 2, 3]
