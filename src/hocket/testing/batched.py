"""Conformance checks for batched simulators: each rule is a sentence, named when it is broken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.batched import (
    BatchedEnv,
    HoldsRows,
    RowSnapshots,
    RowSteps,
)
from hocket.core.data import Array, Observation
from hocket.testing.findings import (
    Bench,
    Broken,
    Finding,
    Moment,
    Rules,
    closes,
    difference,
    draw_actions,
    examine,
    is_same,
    raising,
    require,
    require_one_shape,
    require_same,
)
from hocket.workers.env.spaces import Drive
from hocket.workers.inline import Randomness

_WAYS = ("mask", "snapshot", "together")


def batched_findings(
    make: Callable[[int], BatchedEnv], *, rows: int = 4, steps: int = 20, tolerance: float = 0.0
) -> list[Finding]:
    """Every rule that the simulators made by `make(rows)` break; none means that hocket can run
    them.

    A dozen times, episodes of at most `steps` random actions are played in all rows. `tolerance` is
    what the arithmetic of a device may change where an episode is played again or in another row;
    rows that are not active must not move at all. Rows that step together or not at all are never
    let wait, nor reset beside an episode, but once: to see that they are refused then.
    """
    if rows < 3 or steps < 2:
        raise ValueError("Three rows and two steps are the least that shows anything.")
    bench = _RowBench(make, rows, steps, tolerance)
    with Randomness().apart():
        return examine(bench, _BASICS, lambda: _rules_for(bench))


check_batched = raising("The simulator", batched_findings)


class _RowBench(Bench[Any]):
    """Holds the simulator. Episode e has seed e and its own actions, and can be in any row."""

    def __init__(
        self, make: Callable[[int], BatchedEnv], rows: int, steps: int, tolerance: float
    ) -> None:
        super().__init__(functools.partial(make, rows))
        self.rows = rows
        self.steps = steps
        self.tolerance = tolerance
        self.everyone = np.arange(rows)

    @functools.cached_property
    def actions(self) -> Array:
        """Actions `[rows, steps, ...]`: those of episode e at index e."""
        drawn = draw_actions(self.held.action_space, self.rows * self.steps)
        return drawn.reshape(self.rows, self.steps, *drawn.shape[1:])

    def reset(self, rows: Array, episodes: Sequence[int]) -> None:
        tasks = self.held.tasks
        names = [tasks[episode % len(tasks)] for episode in episodes]
        self.held.reset(rows, names, list(episodes))

    def reset_all(self) -> None:
        self.reset(self.everyone, range(self.rows))

    def look(self, rows: Array) -> Observation:
        """What rows see, copied: a simulator may write into what it returned."""
        return {key: np.array(as_numpy(array)) for key, array in self.held.observe(rows).items()}

    def states(self, rows: Array) -> Array:
        """The states of rows, copied; nothing where the simulator has no snapshots."""
        if not isinstance(self.held, RowSnapshots):
            return np.zeros(0)
        return np.array(as_numpy(self.held.get_rows(rows)))

    def play(
        self,
        episodes: Sequence[int] | None = None,
        *,
        moves: Callable[[int], Array] | None = None,
        looks: int = 1,
        begun: bool = False,
    ) -> list[list[Moment]]:
        """Play episodes, one in each row (episode r in row r by default), and give what each row
        saw. At tick t the rows `moves(t)` move, all by default, and every row is observed `looks`
        times; with `begun` they are not reset."""
        episodes = range(self.rows) if episodes is None else episodes
        if not begun:
            self.reset(self.everyone, episodes)
        told: list[list[Moment]] = [[] for _ in episodes]
        done, is_over = np.zeros(self.rows, int), np.zeros(self.rows, np.bool_)
        for tick in range(self.rows * self.steps):
            wanted = self.everyone if moves is None else moves(tick)
            active = np.isin(self.everyone, wanted) & ~is_over
            if not active.any():
                continue
            # Rows that do not move are given actions all the same, which must not matter.
            at = np.minimum(done, self.steps - 1)
            result = self.held.step(self.actions[list(episodes), at], active)
            seen = [self.look(self.everyone) for _ in range(looks)]
            done += active
            is_over |= active & (result.terminated | result.truncated | (done == self.steps))
            for row in np.flatnonzero(active).tolist():
                observation = {key: array[row] for key, array in seen[0].items()} if seen else None
                numbers = (float(result.rewards[row]), bool(result.terminated[row]))
                told[row].append(Moment(observation, *numbers, bool(result.truncated[row])))
        return told

    def require_same(
        self, one: Sequence[Sequence[Moment]], other: Sequence[Sequence[Moment]], when: str
    ) -> None:
        for row, (a, b) in enumerate(zip(one, other, strict=True)):
            require_same(a, b, f"in row {row} {when}", self.tolerance)


# -- Every simulator -------------------------------------------------------------------------------


def _is_batched(bench: _RowBench) -> None:
    """make(rows) gives a batched simulator of as many rows."""
    env = bench.fresh()
    require(env.rows == bench.rows, f"It has {env.rows} rows; {bench.rows} were asked for.")
    require(bool(env.tasks), "It has no tasks.")
    require(env.suspension in _WAYS, f"Its suspension is {env.suspension!r}, none of {_WAYS}.")
    Drive(env.action_space)


def _resets(bench: _RowBench) -> None:
    """reset(rows, tasks, seeds) begins episodes, and observe(rows) shows them."""
    bench.reset_all()
    seen = bench.look(bench.everyone)
    require(bool(seen), "The observation is empty.")
    for key, array in seen.items():
        require(len(array) == bench.rows, f"{key!r} has shape {array.shape}.")


def _steps(bench: _RowBench) -> None:
    """step(actions, active) gives RowSteps of finite numbers for all rows."""
    bench.reset_all()
    result = bench.held.step(bench.actions[:, 0], np.ones(bench.rows, np.bool_))
    require(isinstance(result, RowSteps), f"It gave a {type(result).__name__}.")
    fields = result._asdict()
    # Numbers may stay on a device until somebody asks; all else is numpy's.
    told = {key: as_numpy(values) for key, values in (fields.pop("numbers") or {}).items()}
    if fields["success"] is None:
        del fields["success"]
    for given, kinds in ((fields, "b"), (told, "fiub")):
        for name, array in given.items():
            require(isinstance(array, np.ndarray), f"{name} is a {type(array).__name__}.")
            require(array.shape == (bench.rows,), f"{name} has shape {array.shape}.")
            is_of = "f" if given is fields and name == "rewards" else kinds
            require(array.dtype.kind in is_of, f"{name} is of {array.dtype}.")
    require(bool(np.isfinite(result.rewards).all()), f"The rewards are {result.rewards}.")


def _keeps_shape(bench: _RowBench) -> None:
    """An observation keeps its keys, shapes and dtypes."""
    require_one_shape(bench.play())


def _is_pure(bench: _RowBench) -> None:
    """observe() is pure."""
    often, never = bench.play(looks=2), bench.play(looks=0)
    bench.require_same(often, never, "between episodes observed twice a step and not at all")
    one, other = bench.look(bench.everyone), bench.look(bench.everyone)
    require(difference(one, other) is None, "Called twice in a row it gives something else.")


def _gives_away(bench: _RowBench) -> None:
    """What observe() gave does not change with a later step: a policy reads it meanwhile."""
    bench.reset_all()
    given = bench.held.observe(bench.everyone)
    before = {key: np.array(as_numpy(array)) for key, array in given.items()}
    for step in range(2):
        bench.held.step(bench.actions[:, step], np.ones(bench.rows, np.bool_))
        bench.look(bench.everyone)
    key = difference(before, {key: as_numpy(array) for key, array in given.items()})
    require(key is None, f"{key} changed: return a copy.")


def _observes_in_order(bench: _RowBench) -> None:
    """observe() shows the rows that were asked for, in their order."""
    bench.reset_all()
    whole = bench.look(bench.everyone)
    for rows in (bench.everyone[::-1], bench.everyone[1:2]):
        expected = {key: array[rows] for key, array in whole.items()}
        key = difference(expected, bench.look(rows))
        require(key is None, f"Asked for {rows.tolist()}, {key} is not theirs.")


def _repeats(bench: _RowBench) -> None:
    """The same seed and actions give the same episode."""
    before = bench.play()
    bench.play([(episode + 1) % bench.rows for episode in range(bench.rows)])
    bench.require_same(before, bench.play(), "after other episodes")
    bench.fresh()
    bench.require_same(before, bench.play(), "in a new simulator")


def _is_the_same_in_any_row(bench: _RowBench) -> None:
    """An episode does not depend on the row that it is in."""
    straight, turned = bench.play(), bench.play(range(bench.rows)[::-1])
    bench.require_same(straight, turned[::-1], "from the same episode in another row")


def _are_independent(bench: _RowBench) -> None:
    """Rows know nothing of each other."""
    together = bench.play()
    if is_together := bench.held.suspension == "together":
        bench.reset(bench.everyone[1:2], [1])  # The others have no episode then.
    alone = bench.play(moves=lambda _: np.array([1]), begun=is_together)
    bench.require_same([together[1]], [alone[1]], "(of two) while no other row moves")
    others = bench.play([0, 1, *[0] * (bench.rows - 2)])
    bench.require_same(together[:2], others[:2], "while other rows play other episodes")


def _stands_still(bench: _RowBench) -> None:
    """A row that is not active does not move."""
    together = bench.play()
    bench.reset_all()
    held, moving = bench.everyone[::2], np.ones(bench.rows, np.bool_)
    moving[held] = False
    before, states = bench.look(held), bench.states(held)
    for step in range(min(3, min(map(len, together)))):
        bench.held.step(bench.actions[:, step], moving)
        key = difference(before, bench.look(held))
        require(key is None, f"{key} of a row that did not move changed at step {step + 1}.")
    require(is_same(states, bench.states(held)), "The state of a row that did not move changed.")
    in_turns = bench.play(moves=lambda tick: bench.everyone[tick % 2 :: 2])
    bench.require_same(together, in_turns, "where rows wait for each other")


def _refuses_to_wait(bench: _RowBench) -> None:
    """A row whose others moved without it is refused its next step until it is reset."""
    bench.reset_all()
    moving = bench.everyone > 0
    try:
        bench.held.step(bench.actions[:, 0], moving)
        bench.held.step(bench.actions[:, 1], ~moving)
    except Exception:  # noqa: BLE001 - of whatever kind: a batched simulator may be anybody's
        return
    raise Broken("It made the step: the row was moved without an action, or has lost something.")


def _resets_only_its_rows(bench: _RowBench) -> None:
    """reset() touches only its rows."""
    expected = bench.play()
    bench.reset_all()
    others = bench.everyone[1:]
    before = bench.look(others)
    bench.reset(bench.everyone[:1], [bench.rows - 1])
    key = difference(before, bench.look(others))
    require(key is None, f"{key} of a row that was not reset changed.")
    found = bench.play([bench.rows - 1, *range(1, bench.rows)], begun=True)
    bench.require_same(expected[1:], found[1:], "(from the second on) after a reset of the first")


# -- Snapshots -------------------------------------------------------------------------------------


def _tells_states(bench: _RowBench) -> None:
    """get_rows() gives one vector for each row, of the caller's own."""
    bench.reset_all()
    before = bench.states(bench.everyone)
    require(before.ndim == 2 and len(before) == bench.rows, f"It has shape {before.shape}.")
    kept = bench.held.get_rows(bench.everyone)
    bench.held.step(bench.actions[:, 0], np.ones(bench.rows, np.bool_))
    require(is_same(before, np.array(as_numpy(kept))), "It changed with a step: return a copy.")


def _returns(bench: _RowBench) -> None:
    """set_rows() brings an earlier state back."""
    bench.reset_all()
    states = bench.held.get_rows(bench.everyone)
    expected = bench.play(begun=True)
    bench.held.set_rows(bench.everyone, states)
    bench.require_same(expected, bench.play(begun=True), "from the state given back")


def _holds(bench: _RowBench) -> None:
    """hold_actions() gives an action for each of its rows, of their own and finite."""
    rows = bench.everyone[1:]
    last = bench.actions[rows, 0]
    bench.reset_all()
    for given, when in ((np.zeros_like(last), "after a reset"), (last, "after a step")):
        held = np.asarray(as_numpy(bench.held.hold_actions(rows, given.copy())))
        shape = held.shape
        require(shape == last.shape, f"It has the shape {shape} {when}, not {last.shape}.")
        require(bool(np.isfinite(held).all()), f"It is not finite {when}.")


_BASICS: Rules = (_is_batched, _resets, _steps)
_ALWAYS: Rules = (
    _keeps_shape,
    _is_pure,
    _gives_away,
    _observes_in_order,
    _repeats,
    _is_the_same_in_any_row,
    _are_independent,
)
_WAITING: Rules = (_stands_still, _resets_only_its_rows)


def _rules_for(bench: _RowBench) -> Rules:
    saved = (_tells_states, _returns) if isinstance(bench.held, RowSnapshots) else ()
    held = (_holds,) if isinstance(bench.held, HoldsRows) else ()
    waits = (_refuses_to_wait,) if bench.held.suspension == "together" else _WAITING
    return [*_ALWAYS, *waits, *saved, *held, closes]
