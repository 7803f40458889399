"""A thread that steps rows for long is called from another, or interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.inline import InlineRuntime
from hocket.workers.notices import LaneFailed, LanesExecuted
from support.row_script import SUITE, ScriptedHost, Scripts

LONG = 3000


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Two rows that execute chunks, of `LONG` steps and of three."""
    Scripts.made.clear()
    ref = Ref(name=SUITE, config={"ends": 0.0})
    spec = WorkerSpec(suites={"scripts": ref}, lanes=2)
    with Fleet(InlineRuntime(), spec, FleetConfig(lanes=2)) as fleet:
        fleet.start()
        fleet.poll(0.0)
        trials = [Trial(suite="scripts", task="first", seed=seed) for seed in (1, 2)]
        fleet.begin([0, 1], [0, 0], trials, [None] * 2, final_observation=False, record=[{}] * 2)
        fleet.poll(0.0)
        fleet.execute([0, 1], [0, 0], [0, 0], [np.zeros((LONG, 1)), np.zeros((3, 1))])
        yield fleet


def after(steps: int, call: Callable[[], None]) -> None:
    """Let another thread call while the simulator makes its step of this number."""
    script = Scripts.made[0]

    def on_step() -> None:
        if len(script.masks) == steps:
            caller = threading.Thread(target=call)
            caller.start()
            caller.join()

    script.on_step = on_step


def test_a_call_is_answered_after_the_running_step_with_what_ended_early(fleet: Fleet) -> None:
    after(50, fleet.wake)
    (executed,) = fleet.poll(600.0, awaits_all=True)
    assert isinstance(executed, LanesExecuted)
    assert (executed.lanes, executed.steps) == ([1], [3])
    assert len(Scripts.made[0].masks) == 50


def test_a_call_with_nothing_to_tell_is_answered_too(fleet: Fleet) -> None:
    assert isinstance(fleet.poll(600.0)[0], LanesExecuted)
    after(50, fleet.wake)
    assert fleet.poll(600.0) == []
    assert len(Scripts.made[0].masks) == 50
    (executed,) = fleet.poll(600.0)
    assert isinstance(executed, LanesExecuted)
    assert (executed.lanes, executed.steps) == ([0], [LONG])


def test_chunks_that_come_while_others_step_are_executed_with_them(fleet: Fleet) -> None:
    """As when an inference ends: the row joins at the next step."""
    assert isinstance(fleet.poll(600.0)[0], LanesExecuted)
    after(10, fleet.wake)
    assert fleet.poll(600.0) == []
    fleet.execute([1], [0], [1], np.ones((1, 4, 1)))
    (executed,) = fleet.poll(600.0)
    assert isinstance(executed, LanesExecuted)
    assert (executed.lanes, executed.steps) == ([1], [4])
    assert Scripts.made[0].masks == [[0, 1]] * 3 + [[0]] * 7 + [[0, 1]] * 4


def test_actions_are_read_when_they_are_sent(fleet: Fleet) -> None:
    """A policy may use its memory again at once."""
    fleet.poll(600.0)
    actions = np.full((1, 2, 1), 5.0)
    fleet.execute([1], [0], [1], actions)
    actions[:] = 9.0
    fleet.poll(600.0)
    assert [one.action for one in Scripts.made[0].did[1][3:]] == [5.0, 5.0]


def test_a_simulator_that_breaks_costs_each_row_once_and_is_built_again(fleet: Fleet) -> None:
    def fail() -> None:
        raise RuntimeError("It broke.")

    fleet.poll(600.0)
    Scripts.made[0].on_step = fail
    lost = [notice for notice in fleet.poll(600.0) if isinstance(notice, LaneFailed)]
    assert [(notice.lane, notice.kind, notice.gone) for notice in lost] == [
        (0, "RuntimeError", True),
        (1, "RuntimeError", True),
    ]
    fleet.poll(0.0)
    assert fleet.is_idle


def test_an_interrupt_passes_through_and_rows_can_be_closed() -> None:
    rig = ScriptedHost(2, ends=0.0)
    rig.begin([0, 1])

    def interrupt() -> None:
        if len(Scripts.made[0].masks) == 3:
            raise KeyboardInterrupt

    Scripts.made[0].on_step = interrupt
    rig.execute([0, 1], [np.zeros(9), np.zeros(2)], [0, 0])
    with pytest.raises(KeyboardInterrupt):
        rig.work(awaits_all=True)
    rig.host.close()
    rig.host.close()
