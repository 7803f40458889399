"""The batched simulators of a worker: found by task, built where they are first needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, TaskInfo
from hocket.core.plugins import did_you_mean
from hocket.errors import UnknownNameError
from hocket.workers.rows.arrays import on_host
from hocket.workers.rows.sim import RowSim
from hocket.workers.suites import open_suite


class RowSims:
    """Numbers its simulators; a lane of the worker is a row in each of them."""

    def __init__(self, spec: WorkerSpec, index: int) -> None:
        self._spec = spec
        self._index = index
        self._suites: dict[str, Any] = {}
        self._sims: list[RowSim] = []
        self._homes: dict[tuple[str, str], int] = {}
        self.tasks: dict[tuple[str, str], TaskInfo] = {}
        """Of all simulators, by suite and name."""

    def __len__(self) -> int:
        return len(self._sims)

    def __getitem__(self, home: int) -> RowSim:
        return self._sims[home]

    def __iter__(self) -> Iterator[RowSim]:
        return iter(self._sims)

    @property
    def share_steps(self) -> bool:
        """Whether all rows are in one simulator, whose step costs the same for any of them."""
        return len(self._sims) == 1 and self._sims[0].shares_steps

    def home(self, suite: str, task: str) -> int:
        """The number of the simulator that has this task; built where there is none yet."""
        home = self._homes.get((suite, task))
        if home is None:
            infos = {info.name: info for info in self.suite(suite).tasks()}
            if task not in infos:
                raise UnknownNameError(
                    f"Suite {suite!r} has no task {task!r}.{did_you_mean(task, infos)}"
                )
            env = self.suite(suite).make_rows(task, self._spec.lanes)
            home = len(self._sims)
            self._sims.append(RowSim(env, self._spec.lanes))
            for name in (task, *env.tasks):
                self._homes[suite, name] = home
                self.tasks[suite, name] = infos[name]
        return home

    def suite(self, name: str) -> Any:
        """The suite that trials call so."""
        if name not in self._suites:
            if name not in self._spec.suites:
                raise UnknownNameError(
                    f"This worker knows no suite {name!r}.{did_you_mean(name, self._spec.suites)}"
                )
            self._suites[name] = open_suite(self._spec.suites[name], self._index)
        return self._suites[name]

    def observe(self, rows: Array, homes: Array) -> dict[str, Array]:
        """What the policy reads of these rows, which live in these simulators."""
        first = int(homes[0])
        if len(self._sims) == 1 or (homes == first).all():
            return self._sims[first].observe(rows, self._spec.reads)
        found: dict[str, Array] = {}
        for home in np.unique(homes).tolist():
            places = np.flatnonzero(homes == home)
            for key, array in self._sims[home].observe(rows[places], self._spec.reads).items():
                part = on_host(array)
                whole = found.setdefault(key, np.empty((len(rows), *part.shape[1:]), part.dtype))
                whole[places] = part
        return found

    def close(self) -> None:
        """Close them all. Twice is safe."""
        while self._sims:
            self._sims.pop().env.close()
