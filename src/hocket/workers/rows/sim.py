"""The batched simulators of a host: built, driven and observed, with a history of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core.arrays import as_numpy, first_difference
from hocket.core.contracts.batched import (
    BatchedEnv,
    CostsByRow,
    Draws,
    HoldsRows,
    RowSnapshots,
    RowSteps,
)
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Observation, Signature, signature
from hocket.core.specs import EnvSpec, TaskInfo
from hocket.errors import EnvError, SecondResetError, SuspensionError
from hocket.workers.env.simulator_model import MODEL_DIGEST, find_model, model_digest
from hocket.workers.env.spaces import Drive, array_specs, choose, is_image
from hocket.workers.rows.table import Moving, StepRing
from hocket.workers.suites import Suites, find_task, told_by, with_details

WAYS = {
    "mask": "Rows that wait for a chunk are masked out of the simulator's step.",
    "snapshot": "Rows that wait for a chunk are put back to a snapshot after each step of others.",
    "together": "All rows step together or none does, and they begin their episodes together.",
}


class RowSim:
    """A simulator with the chunks that its rows execute."""

    def __init__(
        self, env: BatchedEnv, rows: int, reads: tuple[str, ...] | None, suite: object = None
    ) -> None:
        """`reads`: what the policy reads, None for all; `suite`: what made the simulator, which may
        have notes and facts of its own."""
        if env.rows != rows:
            raise EnvError(f"The simulator has {env.rows} rows; it was asked for {rows}.")
        if env.suspension not in WAYS:
            raise SuspensionError(
                f"{type(env).__name__} says that its rows are suspended by {env.suspension!r}; "
                f"known ways are {' and '.join(WAYS)}. Rows never wait under an action."
            )
        self.env = env
        self.drawing = env if isinstance(env, Draws) else None
        self._reads = reads
        self._suite = suite
        # Asked once: to look for a Protocol's methods takes longer than a small batch.
        self.shares_steps = not (isinstance(env, CostsByRow) and env.steps_cost_by_row)
        """True where a step takes nearly as long for one row as for all."""
        self.keeps_states = isinstance(env, RowSnapshots)
        self.is_together = env.suspension == "together"
        self.drive = Drive(env.action_space)
        action = self.drive.spec
        self.chunks = StepRing(rows, action.shape, action.dtype)
        """The running chunks: the actions of one step are given to the simulator as they lie."""
        self.executed = np.zeros((rows, *action.shape), action.dtype)
        """What each row executed last, where `act` was told; zeros after a reset."""
        self.last = self.executed
        """The actions that the simulator was given last; those of rows that did not move mean
        nothing."""
        self._seen: dict[str, Signature] = {}
        """By task."""
        self.task_of = [""] * rows
        """The task that each row was last reset for."""
        self._is_state = np.ones(1, np.bool_)
        """Numbers of a state that are finite after a reset."""

    @property
    def abilities(self) -> tuple[str, ...]:
        can = {
            "deferred": True,
            "snapshot": self.keeps_states,
            "hold": isinstance(self.env, HoldsRows),
            "batched": True,
            "masked": self.env.suspension == "mask",
            "together": self.is_together,
        }
        return tuple(name for name, is_there in can.items() if is_there)

    def reset_again(
        self, rows: Array, tasks: Sequence[str], seeds: Sequence[int], index: int
    ) -> str:
        """Reset one of these rows, which were just reset, with the others where they begin together
        only; return what it sees otherwise now, if anything."""
        row = rows[index : index + 1]
        again = slice(None) if self.is_together else slice(index, index + 1)
        first = {key: np.array(array) for key, array in self.look(row).items()}
        try:
            self.env.reset(rows[again], tasks[again], seeds[again])
        except Exception as exc:
            raise SecondResetError(f"{type(exc).__name__}: {exc}") from exc
        return first_difference(first, self.look(row)) or ""

    def load(self, tick: int, rows: Array, held: Array, counts: Array, actions: Array) -> None:
        """Take chunks `[sum of counts, ...]` for these rows, one after the other. Each begins
        `held` steps after the step `tick`, which is next."""
        self.chunks.reserve(int((held + counts).max()), tick)
        self.chunks.put(rows, tick + held, counts, actions)

    def step(self, moving: Moving, tick: int) -> RowSteps:
        """Make the step `tick`: rows that move execute what their chunks have for it."""
        self.last = self.chunks[tick]
        return self.env.step(self.last, moving.mask)

    def act(self, moving: Moving, actions: Array) -> RowSteps:
        """Make one step with these actions `[k, ...]` of the rows that move."""
        self.executed[moving.rows] = actions
        self.last = self.executed
        return self.env.step(self.last, moving.mask)

    def observe(self, rows: Array) -> dict[str, Array]:
        """What the policy reads of these rows."""
        return choose(self.env.observe(rows), self._reads)

    def look(self, rows: Array) -> dict[str, Array]:
        """All that these rows see, on the host, whatever the policy reads."""
        return {key: on_host(array) for key, array in self.env.observe(rows).items()}

    def states(self, rows: Array) -> Array:
        """The states of these rows, float64 `[k, S]`, on the host."""
        assert isinstance(self.env, RowSnapshots)
        return on_host(self.env.get_rows(rows)).astype(np.float64)

    def prompts(self, rows: Array, tasks: Sequence[TaskInfo]) -> list[str]:
        """The prompts of these rows: the simulator's own where it has some, else the tasks'."""
        ask = getattr(self.env, "prompts", None)
        if ask is None:
            return [task.prompt for task in tasks]
        return [str(text) for text in ask(rows)]

    def learn(self, task: str, row: int) -> None:
        """Note the task of a row that was reset; the first of each task tells its signature."""
        self.task_of[row] = task
        if task not in self._seen:
            self._seen[task] = signature(self._see(row))
            if self.keeps_states:
                self._is_state = np.isfinite(self.states(np.array([row])))

    def has_diverged(self, rows: Array) -> Array:
        """Which of these rows have a number in their state that is NaN or infinite and was not so
        after the first reset, bool `[k]`."""
        return np.asarray((~np.isfinite(self.states(rows)) & self._is_state).any(axis=1))

    def signature(self, row: int) -> Signature:
        return self._seen[self.task_of[row]]

    def spec(self, task: TaskInfo, row: int) -> EnvSpec:
        """What the simulator is, by what one row sees."""
        arrays = self._see(row)
        model = find_model(self.env)
        found = {} if model is None else {MODEL_DIGEST: model_digest(model)}
        notes, facts = told_by(self._suite, self.env)
        return EnvSpec(
            task=task,
            action=self.drive.spec,
            observations=array_specs(arrays),
            cameras=tuple(key for key in sorted(arrays) if is_image(arrays[key])),
            abilities=self.abilities,
            notes=(WAYS[self.env.suspension], *notes),
            facts={**found, **facts},
        )

    def _see(self, row: int) -> Observation:
        """What the policy reads of one row, on the host."""
        arrays = self.observe(np.array([row]))
        return {key: on_host(array[:1])[0] for key, array in arrays.items()}


class RowSims:
    """The simulators of a worker, each built when one of its tasks is first needed. A simulator is
    known by its index, its rows' `home`; a lane of the worker is a row in each of them."""

    def __init__(self, spec: WorkerSpec, index: int) -> None:
        self._spec = spec
        self.suites = Suites(spec.suites, index)
        self._sims: list[RowSim] = []
        self._homes: dict[tuple[str, str], int] = {}
        self.tasks: dict[tuple[str, str], TaskInfo] = {}
        """The tasks of all simulators, by suite and name."""

    def __len__(self) -> int:
        return len(self._sims)

    def __getitem__(self, home: int) -> RowSim:
        return self._sims[home]

    @property
    def are_together(self) -> bool:
        """True if rows of one of them cannot wait for each other."""
        return any(sim.is_together for sim in self._sims)

    def home(self, suite: str, task: str) -> int:
        """The index of the simulator that has this task; it is built where there is none yet."""
        home = self._homes.get((suite, task))
        if home is None:
            infos = self.suites[suite].tasks()
            find_task(suite, infos, task)
            made_by, rows = self.suites[suite], self._spec.lanes
            env: BatchedEnv = made_by.make_rows(task, rows)
            home = len(self._sims)
            self._sims.append(RowSim(env, rows, self._spec.reads, made_by))
            for name in (task, *env.tasks):
                self._homes[suite, name] = home
                self.tasks[suite, name] = with_details(find_task(suite, infos, name), env)
        return home

    def observe(self, rows: Array, homes: Array) -> dict[str, Array]:
        first = int(homes[0])
        if len(self._sims) == 1 or (homes == first).all():
            return self._sims[first].observe(rows)
        return _join(rows, homes, lambda home, mine: self._sims[home].observe(mine))

    def close(self) -> None:
        while self._sims:
            self._sims.pop().env.close()


class RowHistory:
    """Keeps `length` observations of consecutive control steps for each row, on the host, padded
    with the first of an attempt. With a length of 1 it keeps nothing."""

    def __init__(self, rows: int, length: int) -> None:
        self.length = length
        self._rows = rows
        self._arrays: dict[int, dict[str, Array]] = {}
        self._last = np.full(rows, -1, np.int64)
        """Step of each row's newest observation."""
        self._streak = np.zeros(rows, np.int64)
        """How many observations of consecutive steps each row has, the newest included."""

    def restart(self, home: int, rows: Array, sim: RowSim) -> None:
        if self.length == 1:
            return
        kept = self._arrays.setdefault(home, {})
        for key, array in sim.observe(rows).items():
            values = on_host(array)
            if key not in kept:
                shape = (self._rows, self.length, *values.shape[1:])
                kept[key] = np.zeros(shape, values.dtype)
            kept[key][rows] = values[:, None]
        self._last[rows] = 0
        self._streak[rows] = 1

    def push(self, home: int, rows: Array, sim: RowSim, steps: Array) -> None:
        """Add what these rows see after their steps, and drop the oldest."""
        if not len(rows):
            return
        for key, array in sim.observe(rows).items():
            kept = self._arrays[home][key]
            kept[rows, :-1] = kept[rows, 1:]
            kept[rows, -1] = on_host(array)
        follows = steps[rows] == self._last[rows] + 1
        self._streak[rows] = np.where(follows, self._streak[rows] + 1, 1)
        self._last[rows] = steps[rows]

    def lacks(self, steps: Array) -> Array:
        """How many more steps each row must be seen at before its history is whole."""
        if self.length == 1:
            return np.zeros(self._rows, np.int64)
        streak = np.where(steps == self._last, self._streak, 0)
        # Seen at every step since its reset, a row has a whole history, however short.
        return np.where(streak == steps + 1, 0, np.maximum(0, self.length - streak))

    def gather(self, rows: Array, homes: Array) -> dict[str, Array]:
        """The histories `[k, length, ...]` of these rows, oldest first, by their simulators."""
        return _join(
            rows,
            homes,
            lambda home, mine: {key: array[mine] for key, array in self._arrays[home].items()},
        )

    def signature(self, found: Signature) -> Signature:
        """The signature of one observation as that of a whole history."""
        if self.length == 1:
            return found
        return tuple((key, (self.length, *shape), dtype) for key, shape, dtype in found)


def _join(
    rows: Array, homes: Array, observe: Callable[[int, Array], Mapping[str, Any]]
) -> dict[str, Array]:
    """What `observe` gives for the rows of each simulator, in the order of `rows`, on the host."""
    found: dict[str, Array] = {}
    for home in np.unique(homes).tolist():
        is_here = homes == home
        for key, array in observe(home, rows[is_here]).items():
            part = on_host(array)
            whole = found.setdefault(key, np.empty((len(rows), *part.shape[1:]), part.dtype))
            whole[is_here] = part
    return found


def on_host(value: Any) -> Array:
    """The values as a numpy array, copied only where they live on a device."""
    return np.asarray(as_numpy(value))
