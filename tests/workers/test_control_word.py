"""Recall of chunks that are running, and its races."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hocket.core.contracts.link import Link
from hocket.core.data import Array
from hocket.workers.inline import InlineRuntime
from hocket.workers.notices import LanesBegun, LanesExecuted
from hocket.workers.shm import STOP, Control, word
from support.processes import wait_until
from support.rig import Rig

LONG = {"length_min": 5000, "length_max": 5000}
SLOW = {**LONG, "step_s": 0.01}


def link_of(rig: Rig) -> Link:
    link = rig.fleet._workers[0].link
    assert link is not None
    return link


def begun(rig: Rig, actions: Array, *, steps: int, task: str = "count") -> None:
    """Execute a chunk and wait until it has made some steps."""
    rig.begin(task=task)
    rig.wait(LanesBegun)
    rig.execute(actions)
    wait_until(lambda: link_of(rig).steps(0) >= steps)


def rewards_of(actions: Array) -> list[float]:
    """Of a whole chunk, run without any disturbance."""
    with Rig(toy=LONG) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(actions)
        found: list[float] = rig.wait(LanesExecuted).rewards[0].tolist()
    return found


def numbers(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 4))


@pytest.mark.parametrize("task", ["count", "plain"])
@pytest.mark.parametrize("history", [1, 4])
def test_recalled_chunk_answers_with_the_steps_made_and_a_whole_history(
    task: str, history: int
) -> None:
    with Rig(toy=SLOW, history=history) as rig:
        begun(rig, np.zeros((3000, 4)), steps=3, task=task)
        rig.fleet.recall(0, 0, 0)
        done = rig.wait(LanesExecuted)
        assert 3 <= done.steps[0] < 3000
        assert not done.ends[0]
        seen = rig.fleet.arrays(0)["observation/state"].reshape(history, 5)[:, 4]
        expected = [max(0, done.steps[0] - back) for back in reversed(range(history))]
        assert np.rint(seen * 1000).tolist() == expected


@pytest.mark.parametrize("at", range(1, 7))
def test_a_chunk_recalled_early_in_its_episode_ends_with_a_whole_history(at: int) -> None:
    with Rig(toy=LONG, history=4, runtime=InlineRuntime()) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        link = link_of(rig)
        env = link._host._env._env  # type: ignore[attr-defined]
        advance = env.advance

        def advance_and_recall(action: Array) -> Any:
            if link.steps(0) == at - 1:
                link.control(0, word(0, STOP))
            return advance(action)

        env.advance = advance_and_recall
        rig.execute(np.zeros((50, 4)))
        done = rig.wait(LanesExecuted)
        steps = done.steps[0]
        assert at <= steps <= at + 3
        seen = rig.fleet.arrays(0)["observation/state"][:, 4]
        assert np.rint(seen * 1000).tolist() == [max(0, steps - back) for back in (3, 2, 1, 0)]


def test_word_for_another_chunk_is_ignored() -> None:
    with Rig(toy=SLOW) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        rig.execute(np.zeros((2, 4)))
        rig.wait(LanesExecuted)
        rig.fleet.recall(0, 0, 0)
        rig.execute(np.zeros((20, 4)), chunk=1)
        rig.fleet.recall(0, 0, 0)
        link_of(rig).control(0, word(0, STOP))
        assert rig.wait(LanesExecuted).steps == [20]


def test_recall_that_came_too_late_does_not_stop_the_same_chunk_of_the_next_attempt() -> None:
    with Rig(toy={**SLOW, "length_min": 5, "length_max": 5}) as rig:
        for _ in range(2):
            rig.begin()
            rig.wait(LanesBegun)
            rig.execute(np.zeros((20, 4)))
            assert rig.wait(LanesExecuted).steps == [5]
            # As if the recall had been sent just before the answer came.
            link_of(rig).control(0, word(0, STOP))
            rig.fleet._workers[0].slots[0].has_word = True


@pytest.mark.parametrize("transport", ["auto", "inline"])
def test_recalls_at_any_moment_lose_and_repeat_nothing(transport: str) -> None:
    expected = rewards_of(np.zeros((300, 4)))
    draw = random.Random(0)
    made: list[float] = []
    with Rig(toy=LONG, transport=transport) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        chunk = 0
        while len(made) < 300:
            rig.execute(np.zeros((min(20, 300 - len(made)), 4)), chunk=chunk)
            for _ in range(draw.randrange(300)):
                pass
            rig.fleet.recall(0, 0, chunk)
            done = rig.wait(LanesExecuted)
            assert done.chunks == [chunk]
            made += done.rewards[0].tolist()
            chunk += 1
    assert made == expected


def test_control_page_keeps_lanes_and_codes_apart() -> None:
    control = Control(bytearray(Control.size(2)))
    control.set_word(1, word(5, STOP))
    assert control.command(0, 5) == 0
    assert control.command(1, 5) == STOP
    assert control.command(1, 4) == 0
    control.count_step(0)
    assert (control.steps(0), control.steps(1)) == (1, 0)
    assert control.exit_status is None
    for status in (0, 3, -11):
        control.exit_status = status
        assert control.exit_status == status
