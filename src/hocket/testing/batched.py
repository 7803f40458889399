"""Conformance checks for batched simulators: each rule is a sentence, named when it is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hocket.core.arrays import as_numpy
from hocket.core.contracts.batched import BatchedEnv, RowSnapshots, RowSteps
from hocket.core.data import Array, Observation
from hocket.testing.episodes import (
    Moment,
    difference,
    draw_actions,
    kept_randomness,
    require_same,
)
from hocket.testing.findings import (
    Finding,
    Rules,
    all_broken,
    conclude,
    first_broken,
    is_same,
    require,
    try_rule,
)
from hocket.workers.spaces import Drive

_WAYS = ("mask", "snapshot")


def check_batched(
    make: Callable[[int], BatchedEnv], *, rows: int = 4, steps: int = 20, tolerance: float = 0.0
) -> None:
    """Raise ConformanceError with every rule that the simulators made by `make(rows)` break.

    A dozen times, episodes of at most `steps` random actions are played in all rows. `tolerance` is
    what the arithmetic of a device may change where an episode is played again or in another row;
    rows that are not active must not move at all.
    """
    conclude("The simulator", batched_findings(make, rows=rows, steps=steps, tolerance=tolerance))


def batched_findings(
    make: Callable[[int], BatchedEnv], *, rows: int = 4, steps: int = 20, tolerance: float = 0.0
) -> list[Finding]:
    """Every rule that the simulators made by `make(rows)` break; none means that hocket can run
    them."""
    if rows < 3 or steps < 2:
        raise ValueError("Three rows and two steps are the least that shows anything.")
    bench = _Bench(make, rows, steps, tolerance)
    with kept_randomness():
        try:
            findings = first_broken(_BASICS, bench)
            if not findings:
                more = _SNAPSHOTS if isinstance(bench.env, RowSnapshots) else ()
                findings = all_broken([*_ALWAYS, *more, *_LAST], bench, bench.fresh)
            return findings
        finally:
            try_rule("close", bench.close)


class _Bench:
    """Holds the simulator on trial. Episode e has the seed e and actions of its own, and can be
    played in any row."""

    def __init__(
        self, make: Callable[[int], BatchedEnv], rows: int, steps: int, tolerance: float
    ) -> None:
        self._make = make
        self._env: BatchedEnv | None = None
        self._actions: Array | None = None
        self.rows = rows
        self.steps = steps
        self.tolerance = tolerance
        self.everyone = np.arange(rows)

    @property
    def env(self) -> BatchedEnv:
        return self._env if self._env is not None else self.fresh()

    def fresh(self) -> BatchedEnv:
        """Another simulator, the one before closed."""
        self.close()
        self._env = self._make(self.rows)
        return self._env

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    @property
    def actions(self) -> Array:
        """Actions `[rows, steps, ...]`: those of episode e at index e."""
        if self._actions is None:
            drawn = draw_actions(self.env.action_space, self.rows * self.steps)
            self._actions = drawn.reshape(self.rows, self.steps, *drawn.shape[1:])
        return self._actions

    def reset(self, rows: Array, episodes: Sequence[int]) -> None:
        tasks = self.env.tasks
        names = [tasks[episode % len(tasks)] for episode in episodes]
        self.env.reset(rows, names, list(episodes))

    def look(self, rows: Array) -> Observation:
        """What rows see, copied: a simulator may write into what it returned."""
        return {key: np.array(as_numpy(array)) for key, array in self.env.observe(rows).items()}

    def play(
        self,
        episodes: Sequence[int],
        *,
        moves: Callable[[int], Array] | None = None,
        looks: int = 1,
        begun: bool = False,
    ) -> list[list[Moment]]:
        """Play episodes, one in each row, and give what each row saw. At tick t the rows `moves(t)`
        move, all by default, and every row is observed `looks` times; with `begun` they are not
        reset."""
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
            result = self.env.step(self.actions[list(episodes), at], active)
            seen = [self.look(self.everyone) for _ in range(looks)]
            for row in np.flatnonzero(active).tolist():
                observation = {key: array[row] for key, array in seen[0].items()} if seen else None
                moment = _moment(result, row, observation)
                told[row].append(moment)
                done[row] += 1
                is_over[row] = moment.terminated or moment.truncated or done[row] == self.steps
        return told

    def require_same(
        self, one: Sequence[Sequence[Moment]], other: Sequence[Sequence[Moment]], when: str
    ) -> None:
        for row, (a, b) in enumerate(zip(one, other, strict=True)):
            require_same(a, b, f"in row {row} {when}", self.tolerance)


def _moment(result: RowSteps, row: int, observation: Observation | None) -> Moment:
    return Moment(
        observation,
        float(result.rewards[row]),
        bool(result.terminated[row]),
        bool(result.truncated[row]),
        {},
    )


# -- Every simulator -------------------------------------------------------------------------------


def _is_batched(bench: _Bench) -> None:
    env = bench.fresh()
    require(env.rows == bench.rows, f"It has {env.rows} rows; {bench.rows} were asked for.")
    require(bool(env.tasks), "It has no tasks.")
    require(env.suspension in _WAYS, f"Its suspension is {env.suspension!r}, none of {_WAYS}.")
    Drive(env.action_space)


def _resets(bench: _Bench) -> None:
    bench.reset(bench.everyone, range(bench.rows))
    seen = bench.look(bench.everyone)
    require(bool(seen), "The observation is empty.")
    for key, array in seen.items():
        require(len(array) == bench.rows, f"{key!r} has shape {array.shape}.")


def _steps(bench: _Bench) -> None:
    bench.reset(bench.everyone, range(bench.rows))
    result = bench.env.step(bench.actions[:, 0], np.ones(bench.rows, np.bool_))
    require(isinstance(result, RowSteps), f"It gave a {type(result).__name__}.")
    for name, array in result._asdict().items():
        if array is None and name == "success":
            continue
        require(isinstance(array, np.ndarray), f"{name} is a {type(array).__name__}.")
        require(array.shape == (bench.rows,), f"{name} has shape {array.shape}.")
        kind = "f" if name == "rewards" else "b"
        require(array.dtype.kind == kind, f"{name} is of {array.dtype}.")
    require(bool(np.isfinite(result.rewards).all()), f"The rewards are {result.rewards}.")


def _keeps_shape(bench: _Bench) -> None:
    seen = [m.observation or {} for row in bench.play(range(bench.rows)) for m in row]
    known = {key: (array.shape, array.dtype.str) for key, array in seen[0].items()}
    for observation in seen:
        now = {key: (array.shape, array.dtype.str) for key, array in observation.items()}
        require(now == known, f"{sorted(now.items() ^ known.items())[:1]} changed.")


def _is_pure(bench: _Bench) -> None:
    often, never = bench.play(range(bench.rows), looks=2), bench.play(range(bench.rows), looks=0)
    bench.require_same(often, never, "between episodes observed twice a step and not at all")
    one, other = bench.look(bench.everyone), bench.look(bench.everyone)
    require(difference(one, other) is None, "Called twice in a row it gives something else.")


def _observes_in_order(bench: _Bench) -> None:
    bench.reset(bench.everyone, range(bench.rows))
    whole = bench.look(bench.everyone)
    for rows in (bench.everyone[::-1], bench.everyone[1:2]):
        expected = {key: array[rows] for key, array in whole.items()}
        key = difference(expected, bench.look(rows))
        require(key is None, f"Asked for {rows.tolist()}, {key} is not theirs.")


def _repeats(bench: _Bench) -> None:
    before = bench.play(range(bench.rows))
    bench.play([(episode + 1) % bench.rows for episode in range(bench.rows)])
    bench.require_same(before, bench.play(range(bench.rows)), "after other episodes")
    bench.fresh()
    bench.require_same(before, bench.play(range(bench.rows)), "in a new simulator")


def _is_the_same_in_any_row(bench: _Bench) -> None:
    straight = bench.play(range(bench.rows))
    turned = bench.play(range(bench.rows)[::-1])
    bench.require_same(straight, turned[::-1], "from the same episode in another row")


def _are_independent(bench: _Bench) -> None:
    together = bench.play(range(bench.rows))
    alone = bench.play(range(bench.rows), moves=lambda _: np.array([1]))
    bench.require_same([together[1]], [alone[1]], "(of two) while no other row moves")
    others = bench.play([0, 1, *[0] * (bench.rows - 2)])
    bench.require_same(together[:2], others[:2], "while other rows play other episodes")


def _stands_still(bench: _Bench) -> None:
    together = bench.play(range(bench.rows))
    bench.reset(bench.everyone, range(bench.rows))
    held, moving = bench.everyone[::2], np.ones(bench.rows, np.bool_)
    moving[held] = False
    before = bench.look(held)
    states = _states(bench, held)
    for step in range(min(3, min(map(len, together)))):
        bench.env.step(bench.actions[:, step], moving)
        key = difference(before, bench.look(held))
        require(key is None, f"{key} of a row that did not move changed at step {step + 1}.")
    require(is_same(states, _states(bench, held)), "The state of a row that did not move changed.")
    in_turns = bench.play(range(bench.rows), moves=lambda tick: bench.everyone[tick % 2 :: 2])
    bench.require_same(together, in_turns, "where rows wait for each other")


def _states(bench: _Bench, rows: Array) -> Array:
    env = bench.env
    return np.array(as_numpy(env.get_rows(rows))) if isinstance(env, RowSnapshots) else np.zeros(0)


def _resets_only_its_rows(bench: _Bench) -> None:
    expected = bench.play(range(bench.rows))
    bench.reset(bench.everyone, range(bench.rows))
    others = bench.everyone[1:]
    before = bench.look(others)
    bench.reset(bench.everyone[:1], [bench.rows - 1])
    key = difference(before, bench.look(others))
    require(key is None, f"{key} of a row that was not reset changed.")
    found = bench.play([bench.rows - 1, *range(1, bench.rows)], begun=True)
    bench.require_same(expected[1:], found[1:], "(from the second on) after a reset of the first")


# -- Snapshots -------------------------------------------------------------------------------------


def _tells_states(bench: _Bench) -> None:
    bench.reset(bench.everyone, range(bench.rows))
    states = _states(bench, bench.everyone)
    require(states.ndim == 2 and len(states) == bench.rows, f"It has shape {states.shape}.")
    assert isinstance(bench.env, RowSnapshots)
    kept = bench.env.get_rows(bench.everyone)
    before = np.array(as_numpy(kept))
    bench.env.step(bench.actions[:, 0], np.ones(bench.rows, np.bool_))
    require(is_same(before, np.array(as_numpy(kept))), "It changed with a step: return a copy.")


def _returns(bench: _Bench) -> None:
    assert isinstance(bench.env, RowSnapshots)
    bench.reset(bench.everyone, range(bench.rows))
    states = bench.env.get_rows(bench.everyone)
    expected = bench.play(range(bench.rows), begun=True)
    bench.env.set_rows(bench.everyone, states)
    found = bench.play(range(bench.rows), begun=True)
    bench.require_same(expected, found, "from the state given back")


def _closes(bench: _Bench) -> None:
    env = bench.env
    bench.close()
    env.close()


_BASICS: Rules = (
    ("make(rows) gives a batched simulator of as many rows.", _is_batched),
    ("reset(rows, tasks, seeds) begins episodes, and observe(rows) shows them.", _resets),
    ("step(actions, active) gives RowSteps of finite numbers for all rows.", _steps),
)
_ALWAYS: Rules = (
    ("An observation keeps its keys, shapes and dtypes.", _keeps_shape),
    ("observe() is pure.", _is_pure),
    ("observe() shows the rows that were asked for, in their order.", _observes_in_order),
    ("The same seed and actions give the same episode.", _repeats),
    ("An episode does not depend on the row that it is in.", _is_the_same_in_any_row),
    ("Rows know nothing of each other.", _are_independent),
    ("A row that is not active does not move.", _stands_still),
    ("reset() touches only its rows.", _resets_only_its_rows),
)
_SNAPSHOTS: Rules = (
    ("get_rows() gives one vector for each row, of the caller's own.", _tells_states),
    ("set_rows() brings an earlier state back.", _returns),
)
_LAST: Rules = (("close() may be called twice.", _closes),)
