"""A batched simulator whose rows do what dice say, and that writes down what each of them did: the
book against which a host's words are held. Of rows that do not move it gives nonsense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from hocket.core.contracts.batched import RowSteps
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Ref, SuccessRule
from hocket.core.specs import TaskInfo
from hocket.core.wire import Begin, Discard, Execute, Executed, Message
from hocket.workers.rows.host import RowsHost
from hocket.workers.shm import STOP, Control, word

SUITE = "support.row_script:Scripts"
KEY = "observation/state"


class Did(NamedTuple):
    """One step of one row, as the simulator saw it."""

    action: float
    reward: float
    is_terminated: bool
    is_truncated: bool
    success: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """What the dice are like."""

    ends: float = 0.05
    """Chance of each kind of end, at each step."""
    judges: str = "always"
    """`always`, `never`, or `now and then`: whether steps say who succeeded."""
    success_rule: SuccessRule = "first"
    max_steps: int | None = None
    apart: bool = False
    """A simulator of its own for each task, and the second sees twice as much."""
    way: str = "mask"
    """How its rows are kept from moving."""
    raise_at: int = 0
    """Raises in its step of this number, and is broken ever after."""


class Script:
    """Rows without a world."""

    def __init__(self, rows: int, tasks: Sequence[str], config: ScriptConfig) -> None:
        self.rows = rows
        self.suspension = config.way
        self.tasks = tuple(tasks)
        self.config = config
        self.action_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)
        self.did: list[list[Did]] = [[] for _ in range(rows)]
        """Of each row, since its last reset."""
        self.masks: list[list[int]] = []
        """The rows of each step."""
        self.on_step: Callable[[], None] = lambda: None
        self._dice = np.random.default_rng(0)
        self._is_broken = False

    def reset(self, rows: Array, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        self._dice = np.random.default_rng([*seeds, len(self.masks)])
        for row in rows.tolist():
            self.did[row] = []

    def step(self, actions: Array, active: Array) -> RowSteps:
        self.masks.append(np.flatnonzero(active).tolist())
        self.on_step()
        if len(self.masks) == self.config.raise_at:
            self._is_broken = True
            raise RuntimeError("The script says so.")
        dice, count = self._dice, self.rows
        chance = np.where(active, self.config.ends, 0.5)
        rewards = dice.normal(size=count)
        terminated, truncated, won = (dice.random(count) < chance for _ in range(3))
        judges = self.config.judges
        is_judged = judges == "always" or (judges != "never" and bool(dice.integers(2)))
        for row in self.masks[-1]:
            self.did[row].append(
                Did(
                    float(actions[row, 0]),
                    float(rewards[row]),
                    bool(terminated[row]),
                    bool(truncated[row]),
                    bool(won[row]) if is_judged else None,
                )
            )
        return RowSteps(rewards, terminated, truncated, won if is_judged else None)

    def observe(self, rows: Array) -> dict[str, Array]:
        if self._is_broken:
            raise RuntimeError("Nothing is to be seen any more.")
        size = 2 if self.config.apart and self.tasks == ("second",) else 1
        steps = [[len(self.did[row])] * size for row in rows.tolist()]
        return {KEY: np.array(steps, np.float32)}

    def close(self) -> None:
        """Nothing to let go of."""


class Scripts:
    """Two tasks."""

    Config: ClassVar = ScriptConfig
    made: ClassVar[list[Script]] = []

    def __init__(self, argument: str, config: ScriptConfig) -> None:
        self._config = config

    def tasks(self) -> list[TaskInfo]:
        rule, limit = self._config.success_rule, self._config.max_steps
        return [
            TaskInfo(name=name, prompt=name, max_steps=limit, success_rule=rule)
            for name in ("first", "second")
        ]

    def make_rows(self, task: str, rows: int) -> Script:
        tasks = (task,) if self._config.apart else ("first", "second")
        self.made.append(Script(rows, tasks, self._config))
        return self.made[-1]


class ScriptedHost:
    """A host of scripted rows, spoken to by hand. Its clock goes on by a second at each look."""

    def __init__(self, rows: int, *, history: int = 1, **config: Any) -> None:
        ref = Ref(name=SUITE, config=config)
        spec = WorkerSpec(suites={"scripts": ref}, lanes=rows, history=history)
        self.rows = rows
        self.posted: list[Message] = []
        self.control = Control(bytearray(Control.size(rows)))
        self.seconds = 0.0
        Scripts.made.clear()
        self.host = RowsHost(spec, self.control, self.posted.append, 0, self._look)
        self.chunk = [-1] * rows

    def _look(self) -> float:
        self.seconds += 1.0
        return self.seconds

    def begin(
        self, lanes: Sequence[int], attempt: int = 0, *, task: str = "first", final: bool = False
    ) -> None:
        trials = [("scripts", task, 10 * attempt + lane, 0) for lane in lanes]
        count = len(lanes)
        self.host.perform(
            Begin(list(lanes), [attempt] * count, trials, [0] * count, final, [{}] * count)
        )

    def execute(
        self, lanes: Sequence[int], chunks: Sequence[Array], attempts: Sequence[int]
    ) -> None:
        """Chunks `[k]` of numbers."""
        for lane in lanes:
            self.chunk[lane] += 1
            self.control.set_word(lane, 0)
        counts = [len(chunk) for chunk in chunks]
        numbers = [self.chunk[lane] for lane in lanes]
        data = np.concatenate(chunks).astype("<f8").tobytes()
        self.host.perform(Execute(list(lanes), list(attempts), numbers, counts, data, ()))

    def recall(self, lane: int) -> None:
        self.control.set_word(lane, word(self.chunk[lane], STOP))

    def discard(self, lane: int, attempt: int) -> None:
        self.host.perform(Discard([lane], [attempt]))

    def work(
        self,
        seconds: float = 1e9,
        *,
        awaits_all: bool = False,
        is_called: Callable[[], bool] = lambda: False,
    ) -> bool:
        return self.host.work(seconds, is_called, awaits_all=awaits_all)

    def take(self) -> list[Message]:
        """What was told since the last look."""
        taken = list(self.posted)
        self.posted.clear()
        return taken

    def executed(self) -> list[Executed]:
        return [message for message in self.take() if isinstance(message, Executed)]
