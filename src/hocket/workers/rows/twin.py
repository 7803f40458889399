"""Resets beside the steps, and ahead of them: a second simulator of the same kind, in a thread of
its own.

What a simulator resets, it cannot step meanwhile: a reset of one row holds up all others. A twin
resets rows for trials instead, those that are to begin and those that are foreseen, and the first
simulator takes them over when they begin (see `TakesRows`). Which row a trial was reset in, and
when, has no influence on it: what is random in it follows from its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread

import numpy as np

from hocket.core.contracts.batched import BatchedEnv

Asked = tuple[str, str, int, int]
"""A trial, as messages have it: suite, task, seed, repeat."""

# Chosen by hand.
POLL_S = 1e-3
"""Seconds after which it is looked again whether a reset is done, where no row moves meanwhile."""
FEW = 0.5
"""Share of the rows that are ready for foreseen trials under which a call is made for more. Rows
are not taken over while others are reset, so that calls had better be few."""
CLOSE_S = 10.0
"""Seconds that a reset under way may take to end when everything is closed; it is left behind
then, in a thread that keeps no process alive."""


class Twin:
    """One call at a time. The caller's thread asks, and looks whether it is done."""

    def __init__(self, build: Callable[[], BatchedEnv], rows: int) -> None:
        """`build` makes a simulator of so many rows."""
        self._build = build
        self._rows = rows
        self._env: BatchedEnv | None = None
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._under_way: dict[Asked, int] = {}
        self.ready: dict[Asked, int] = {}
        """The trials that were reset, with the rows that they are in."""

    @property
    def env(self) -> BatchedEnv:
        assert self._env is not None  # asked of rows that are ready
        return self._env

    @property
    def is_called(self) -> bool:
        """Whether a call was begun that `collect` has not looked at the end of."""
        return self._thread is not None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def collect(self) -> None:
        """Take note of what was reset. Raises what the call did."""
        assert not self.is_busy
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.ready |= self._under_way
        self._under_way = {}

    def start(self, needed: Sequence[Asked], ahead: Callable[[int], Sequence[Asked]]) -> None:
        """Begin a call for the trials that wait, none of which is ready, and for those that come
        next, of which `ahead` gives so many, where any wait or few are ready."""
        if not needed and len(self.ready) > FEW * self._rows:
            return
        wanted = dict.fromkeys([*needed, *ahead(self._rows)][: self._rows])
        self.ready = {trial: row for trial, row in self.ready.items() if trial in wanted}
        free = set(range(self._rows)).difference(self.ready.values())
        missing = [trial for trial in wanted if trial not in self.ready]
        self._under_way = dict(zip(missing, free, strict=False))
        if missing:
            self._thread = Thread(target=self._reset, name="hocket-resets", daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                return
        if self._env is not None:
            self._env.close()
            self._env = None

    def _reset(self) -> None:
        try:
            if self._env is None:
                self._env = self._build()
            rows = np.array([*self._under_way.values()], np.int64)
            tasks, seeds = zip(*(trial[1:3] for trial in self._under_way), strict=True)
            self._env.reset(rows, list(tasks), list(seeds))
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - raised to whoever goes on with it
            self._error = exc
