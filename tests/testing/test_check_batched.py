"""Each rule of check_batched catches a simulator that breaks it, and ours keep them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hocket.core import plugins
from hocket.core.contracts.batched import RowSteps
from hocket.core.data import Array
from hocket.testing import ConformanceError, batched_findings, check_batched
from support.delayed import HoldingRows
from support.row_toys import RowToy, RowToyConfig, RowToys
from support.together import Rows as Together

CONFIG = RowToyConfig(length_min=5, length_max=40)


class Sound(RowToy):
    def __init__(self, rows: int) -> None:
        super().__init__(rows, ("walk", "run"), CONFIG)


class FewRows(Sound):
    def __init__(self, rows: int) -> None:
        super().__init__(rows - 1)


class Drifting(Sound):
    suspension = "no-op"


class Blind(Sound):
    def observe(self, rows: Array) -> dict[str, Array]:
        return {}


class BareSteps(Sound):
    def step(self, actions: Array, active: Array) -> Any:
        return tuple(super().step(actions, active))


class NanRewards(Sound):
    def step(self, actions: Array, active: Array) -> RowSteps:
        return super().step(actions, active)._replace(rewards=np.full(self.rows, np.nan))


class NumberedEnds(Sound):
    def step(self, actions: Array, active: Array) -> RowSteps:
        return super().step(actions, active)._replace(truncated=np.zeros(self.rows, int))


class Growing(Sound):
    def observe(self, rows: Array) -> dict[str, Array]:
        seen = super().observe(rows)
        return seen if self.steps < 3 else {key: array[:, :2] for key, array in seen.items()}


class PushingObserve(Sound):
    def observe(self, rows: Array) -> dict[str, Array]:
        seen = super().observe(rows)
        self.word[rows] += np.uint64(1)
        return seen


class Unordered(Sound):
    def observe(self, rows: Array) -> dict[str, Array]:
        return super().observe(np.sort(rows))


class OneBuffer(Sound):
    """Writes what all rows see into the array that it gave before."""

    buffer: dict[str, Array] | None = None

    def observe(self, rows: Array) -> dict[str, Array]:
        seen = super().observe(rows)
        if len(rows) < self.rows:
            return seen
        self.buffer = self.buffer or seen
        for key, array in seen.items():
            self.buffer[key][:] = array
        return self.buffer


class Unseeded(Sound):
    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        super().reset(rows, tasks, np.random.default_rng().integers(99, size=len(rows)).tolist())


class ByRow(Sound):
    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        super().reset(rows, tasks, [seed + 10 * row for seed, row in zip(seeds, rows, strict=True)])


class Entangled(Sound):
    """What the first row does shows in the rewards of the second."""

    def step(self, actions: Array, active: Array) -> RowSteps:
        result = super().step(actions, active)
        result.rewards[1] += self.clock[0]
        return result


class MovesAll(Sound):
    def step(self, actions: Array, active: Array) -> RowSteps:
        return self.move(actions, np.arange(self.rows))


class TickingClock(Sound):
    """Rows that wait stand still, but their episodes' clocks go on, unseen."""

    def step(self, actions: Array, active: Array) -> RowSteps:
        self.length[~active] -= 1
        return super().step(actions, active)


class ResetsAll(Sound):
    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        super().reset(np.arange(self.rows), [tasks[0]] * self.rows, [seeds[0]] * self.rows)
        super().reset(rows, tasks, seeds)


class SharedStates(Sound):
    """States are views of the simulator's own memory."""

    def get_rows(self, rows: Array) -> Array:
        return self.word[:, None]

    def set_rows(self, rows: Array, states: Array) -> None:
        self.word[rows] = states[:, 0]


class ForgetfulStates(Sound):
    def set_rows(self, rows: Array, states: Array) -> None:
        clock = self.clock[rows]
        super().set_rows(rows, states)
        self.clock[rows] = clock


class HoldsEveryRow(Sound):
    """Answers for all rows, whichever were asked for."""

    def hold_actions(self, rows: Array, last: Array) -> Array:
        del rows
        return np.zeros((self.rows, *last.shape[1:]))


class HoldsNowhere(Sound):
    def hold_actions(self, rows: Array, last: Array) -> Array:
        del rows
        return np.full_like(last, np.nan)


class FragileClose(Sound):
    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        super().close()


class Pendulums(SyncVectorEnv):
    """A vector env with its rows' states exposed: physics, and the clock of the time limit."""

    def __init__(self, rows: int) -> None:
        makers = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=30)] * rows
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)

    def get_rows(self, rows: Array) -> Array:
        envs: list[Any] = [self.envs[row] for row in rows]
        return np.array([[*env.unwrapped.state, env._elapsed_steps] for env in envs])

    def set_rows(self, rows: Array, states: Array) -> None:
        for row, state in zip(rows, states, strict=True):
            env: Any = self.envs[row]
            env.unwrapped.state, env._elapsed_steps = state[:2], int(state[2])


BROKEN = [
    (FewRows, "make(rows) gives a batched simulator of as many rows."),
    (Drifting, "make(rows) gives a batched simulator of as many rows."),
    (Blind, "reset(rows, tasks, seeds) begins episodes"),
    (BareSteps, "step(actions, active) gives RowSteps"),
    (NanRewards, "step(actions, active) gives RowSteps"),
    (NumberedEnds, "step(actions, active) gives RowSteps"),
    (Growing, "An observation keeps its keys, shapes and dtypes."),
    (PushingObserve, "observe() is pure."),
    (OneBuffer, "What observe() gave does not change with a later step"),
    (Unordered, "observe() shows the rows that were asked for"),
    (Unseeded, "The same seed and actions give the same episode."),
    (ByRow, "An episode does not depend on the row that it is in."),
    (Entangled, "Rows know nothing of each other."),
    (MovesAll, "A row that is not active does not move."),
    (TickingClock, "A row that is not active does not move."),
    (ResetsAll, "reset() touches only its rows."),
    (SharedStates, "get_rows() gives one vector for each row"),
    (ForgetfulStates, "set_rows() brings an earlier state back."),
    (HoldsEveryRow, "hold_actions() gives an action"),
    (HoldsNowhere, "hold_actions() gives an action"),
    (FragileClose, "close() may be called twice."),
]


@pytest.mark.parametrize("way", ["mask", "snapshot"])
def test_toys_are_sound_however_they_are_suspended(way: str) -> None:
    suite = RowToys("", RowToyConfig(way=way))
    check_batched(lambda rows: suite.make_rows("walk", rows))


def test_rows_that_step_together_or_not_at_all_are_sound() -> None:
    check_batched(Together)


class MovesOn(Together):
    """Lets a row wait while others move, and goes on with it as if nothing were."""

    def step(self, actions: Array, active: Array) -> RowSteps:
        self.is_live[:] = active
        return super().step(actions, active)


class Leans(Together):
    """A row ends sooner beside others that have begun."""

    def step(self, actions: Array, active: Array) -> RowSteps:
        self.steps += int(active.sum() > 1) * active * (self.steps == 1)
        return super().step(actions, active)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (MovesOn, "A row whose others moved without it is refused"),
        (Leans, "Rows know nothing of each other."),
    ],
)
def test_a_fault_of_rows_that_step_together_is_told(make: Any, rule: str) -> None:
    (finding,) = batched_findings(make)
    assert finding.rule.startswith(rule)


def test_toys_that_hold_still_are_sound() -> None:
    suite = HoldingRows("", RowToyConfig())
    check_batched(lambda rows: suite.make_rows("walk", rows))


@pytest.mark.parametrize(("make", "rule"), BROKEN)
def test_a_broken_simulator_is_told_which_rule_it_breaks(
    make: Callable[[int], Any], rule: str
) -> None:
    findings = batched_findings(make)
    assert any(finding.rule.startswith(rule) for finding in findings), findings
    with pytest.raises(ConformanceError):
        check_batched(make)


def test_one_fault_is_not_held_against_other_rules() -> None:
    for make in (Unordered, ForgetfulStates, FragileClose):
        assert len(batched_findings(make)) == 1, make


def test_what_a_device_rounds_may_be_tolerated() -> None:
    class Rounding(Sound):
        def observe(self, rows: Array) -> dict[str, Array]:
            seen = super().observe(rows)
            return {key: a + np.float32(1e-6) * rows[:, None] for key, a in seen.items()}

    assert batched_findings(Rounding)
    check_batched(Rounding, tolerance=1e-4)


@pytest.mark.parametrize("task", ["reach", "push"])
def test_mjx_on_the_processor_is_sound(task: str) -> None:
    suite = plugins.build("envs", f"mjx:{task}", {"backend": "c", "threads": 1})
    check_batched(lambda rows: suite.make_rows(task, rows), rows=3, steps=6)


def test_a_vector_env_is_sound() -> None:
    name = f"{__name__}:Pendulums"
    suite = plugins.build("envs", f"vector:{name}", {})
    check_batched(lambda rows: suite.make_rows(name, rows))
