"""When chunks of rows that ended are told, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Array
from hocket.core.wire import END_OBSERVED, END_TRUNCATED, Executed, Failed, Sealed
from support.row_script import KEY, ScriptedHost, Scripts

WORDS = "The env raised RuntimeError: The script says so."


def chunks(*counts: int) -> list[Array]:
    return [np.arange(count, dtype=np.float64) + 100 * index for index, count in enumerate(counts)]


def begun(rows: int, **config: Any) -> ScriptedHost:
    """All rows are reset; none ends by itself."""
    rig = ScriptedHost(rows, ends=0.0, **config)
    rig.begin(range(rows))
    rig.take()
    return rig


def told(rig: ScriptedHost) -> list[dict[int, tuple[int, int]]]:
    """Of each message, the steps and ends of its lanes."""
    return [
        dict(zip(m.lanes, zip(m.steps, m.ends, strict=True), strict=True)) for m in rig.executed()
    ]


def test_a_chunk_that_ends_early_is_told_at_once_where_the_others_are_not_awaited() -> None:
    rig = begun(3)
    rig.execute([0, 1, 2], chunks(5, 2, 5), [0] * 3)
    rig.work()
    assert told(rig) == [{1: (2, 0)}]
    rig.work()
    assert told(rig) == [{0: (5, 0), 2: (5, 0)}]


def test_a_chunk_that_ends_early_is_told_with_the_others_where_all_are_awaited() -> None:
    rig = begun(3)
    rig.execute([0, 1, 2], chunks(5, 2, 4), [0] * 3)
    rig.work(awaits_all=True)
    assert told(rig) == [{0: (5, 0), 1: (2, 0), 2: (4, 0)}]
    assert Scripts.made[0].masks == [[0, 1, 2]] * 2 + [[0, 2]] * 2 + [[0]]


def test_an_episode_that_ends_in_mid_chunk_is_told_with_the_others_and_begins_anew() -> None:
    rig = begun(2, max_steps=6)
    rig.execute([0], chunks(4), [0])
    rig.work()
    rig.take()
    rig.execute([0, 1], chunks(5, 5), [0, 0])
    rig.work(awaits_all=True)
    assert told(rig) == [{0: (2, END_TRUNCATED | 8), 1: (5, 0)}]
    rig.begin([0], attempt=1)
    rig.take()
    rig.execute([0, 1], chunks(3, 1), [1, 0])
    rig.work(awaits_all=True)
    assert told(rig) == [{0: (3, 0), 1: (1, END_TRUNCATED | 8)}]


@pytest.mark.parametrize("awaits_all", [False, True])
def test_a_call_ends_the_work_after_the_running_step(awaits_all: bool) -> None:
    rig = begun(2)
    rig.execute([0, 1], chunks(9, 2), [0, 0])
    is_rung: list[bool] = []
    script = Scripts.made[0]
    script.on_step = lambda: is_rung.append(True) if len(script.masks) == 4 else None
    while not is_rung:
        rig.work(awaits_all=awaits_all, is_called=lambda: bool(is_rung))
    assert len(script.masks) == 4
    assert told(rig) == [{1: (2, 0)}]


def test_what_ended_is_told_when_the_time_is_over() -> None:
    rig = begun(2)
    rig.execute([0, 1], chunks(9000, 1), [0, 0])
    rig.work(50.0, awaits_all=True)
    assert told(rig) == [{1: (1, 0)}]
    assert len(Scripts.made[0].masks) < 60


def test_rows_that_were_all_recalled_make_no_step_more() -> None:
    rig = begun(2)
    rig.execute([0, 1], chunks(9, 9), [0, 0])
    rig.work(0.0)
    rig.recall(0)
    rig.recall(1)
    rig.work()
    assert told(rig) == [{0: (1, 0), 1: (1, 0)}]
    assert Scripts.made[0].masks == [[0, 1]]


def test_a_recalled_row_ends_while_the_others_go_on_from_where_they_were() -> None:
    rig = begun(3)
    rig.execute([0, 1, 2], chunks(6, 6, 6), [0] * 3)
    rig.work(0.0)
    rig.recall(1)
    rig.work(awaits_all=True)
    assert told(rig) == [{0: (6, 0), 1: (1, 0), 2: (6, 0)}]
    assert [one.action for one in Scripts.made[0].did[2]] == chunks(6, 6, 6)[2].tolist()


def test_pictures_are_drawn_in_steps_after_which_somebody_looks() -> None:
    rig = ScriptedHost(2, ends=0.0)
    drawn: list[bool] = []

    def watch() -> None:
        drawn.append(script.draws)

    for final in (False, True):
        rig.begin([0, 1], attempt=int(final), final=final)
        script: Any = Scripts.made[-1]
        if not final:
            assert rig.host._sims[0].drawing is None, "most have no pictures to leave out"
            rig.host._sims[0].drawing = script
            script.on_step = watch
        rig.execute([0, 1], [np.zeros(3), np.zeros(5)], [int(final)] * 2)
        rig.work(awaits_all=True)
    # With the end of an episode to be looked at, any step may be the last.
    assert drawn == [False, False, True, False, True] + [True] * 5


def test_a_row_that_is_recalled_makes_one_more_step_for_its_picture() -> None:
    rig = ScriptedHost(1, ends=0.0)
    rig.begin([0])
    script: Any = Scripts.made[-1]
    rig.host._sims[0].drawing = script
    rig.execute([0], [np.zeros(5)], [0])
    rig.work(seconds=0.0)
    assert not script.draws
    rig.recall(0)
    rig.work()
    assert script.draws
    assert [message.steps for message in rig.executed()] == [[2]]


def test_a_recalled_row_goes_on_until_its_history_is_whole() -> None:
    rig = begun(2, history=3)
    rig.execute([0, 1], chunks(20, 20), [0, 0])
    rig.work(0.0)
    rig.recall(1)
    rig.work()
    assert told(rig) == [{1: (4, 0)}]
    assert rig.host.arrays(1)[KEY].tolist() == [[2.0], [3.0], [4.0]]


def test_rows_of_several_simulators_that_end_at_once_each_show_what_they_saw() -> None:
    rig = ScriptedHost(2, ends=0.0, apart=True, max_steps=3)
    rig.begin([0], final=True)
    rig.begin([1], task="second", final=True)
    rig.take()
    rig.execute([0, 1], chunks(5, 5), [0, 0])
    rig.work(awaits_all=True)
    (message,) = rig.executed()
    assert all(end & END_OBSERVED for end in message.ends)
    assert rig.host.arrays(0)[KEY].tolist() == [3.0]
    assert rig.host.arrays(1)[KEY].tolist() == [3.0, 3.0]


def kinds(messages: Sequence[object]) -> list[type]:
    return [type(message) for message in messages]


def test_what_ended_before_the_simulator_broke_is_told_before_that() -> None:
    rig = ScriptedHost(2, ends=0.0, max_steps=2, raise_at=3)
    rig.begin([0, 1])
    rig.execute([1], chunks(1), [0])
    rig.work()
    rig.take()
    rig.execute([0, 1], chunks(5, 5), [0, 0])
    rig.work(awaits_all=True)
    messages = rig.take()
    assert kinds(messages) == [Executed, Sealed, Failed]
    assert (messages[0].lanes, messages[0].steps) == ([1], [1])  # type: ignore[union-attr]
    assert (messages[2].lane, messages[2].message) == (-1, WORDS)  # type: ignore[union-attr]
    assert rig.host.due_s() is None


def test_of_a_simulator_that_broke_the_first_error_is_told() -> None:
    rig = ScriptedHost(2, ends=0.0, max_steps=2, raise_at=3)
    rig.begin([0, 1], final=True)
    rig.execute([1], chunks(1), [0])
    rig.work()
    rig.take()
    rig.execute([0, 1], chunks(5, 5), [0, 0])
    rig.work(awaits_all=True)
    messages = rig.take()
    assert kinds(messages) == [Failed]
    assert messages[0].message == WORDS  # type: ignore[union-attr]


def test_a_row_that_was_recalled_before_its_first_step_was_not_judged() -> None:
    rig = begun(2, judges="always")
    rig.execute([0], chunks(1), [0])
    rig.work()
    rig.execute([0, 1], chunks(3, 3), [0, 0])
    rig.recall(1)
    rig.work()
    rig.discard(0, 0)
    rig.take()
    script = Scripts.made[0]
    step = script.step

    def unjudged(actions: Array, active: Array) -> Any:
        result = step(actions, active)
        return result._replace(success=None, terminated=active.copy())

    script.step = unjudged  # type: ignore[method-assign]
    rig.execute([1], chunks(1), [0])
    rig.work()
    assert told(rig) == [{1: (1, 1)}]
