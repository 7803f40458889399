"""Resets that wait for each other, where each holds up all rows of a simulator. No clock: time is
an argument, in seconds.

A batched simulator resets many rows in about the time of one, and steps none meanwhile. With c
seconds for a call beside what each row of it costs, to reset now costs the rows in an episode c
seconds each, and those whose chunks come in w seconds c - w; to wait costs each row that is to be
reset the time that it waits. Where the second sum has come up to the first, the call is made: a
call more often, or less often, would cost more of both together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from hocket.core.wire import Begin

WINDOW = 16
"""Calls of which it is learnt what they cost."""
OUTLIER = 4.0
"""A call that took this many medians is left out: it compiled something, most likely."""
LONGEST = 10.0
"""Rows wait for each other at most this many times what a call costs. In runs whose episodes end
one after the other they wait about three; the last rows of a run must not wait for nobody."""


class WaitingResets:
    """The attempts that are to begin, and what resets have cost."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Begin, int, float]] = {}
        """By lane: the message, the lane's index in it, and since when."""
        self._took: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def __len__(self) -> int:
        return len(self._waiting)

    def took(self, rows: int, seconds: float) -> None:
        """Learn what a call for a number of rows cost."""
        self._took.append((rows, seconds))

    @property
    def setup_s(self) -> float:
        """Seconds of a call beside what each of its rows costs; 0 while one call alone is known."""
        if len(self._took) < 2:
            return 0.0
        most = OUTLIER * median(seconds for _, seconds in self._took)
        rows, seconds = np.array([each for each in self._took if each[1] <= most]).T
        by_row = 0.0
        if np.ptp(rows) > 0:
            by_row = float(np.cov(rows, seconds)[0, 1] / np.var(rows, ddof=1))
        setup_s = float(seconds.mean() - max(0.0, by_row) * rows.mean())
        return min(max(0.0, setup_s), float(seconds.min()))

    def add(self, message: Begin, now: float) -> None:
        """Let the attempts of a message wait."""
        for index, lane in enumerate(message.lanes):
            self._waiting[lane] = (message, index, now)

    def drop(self, lanes: Iterable[int], attempts: Iterable[int]) -> None:
        """Forget these attempts, where they wait."""
        for lane, attempt in zip(lanes, attempts, strict=True):
            found = self._waiting.get(lane)
            if found is not None and found[0].attempts[found[1]] == attempt:
                del self._waiting[lane]

    def due_s(self, running: int, coming: Sequence[tuple[float, int]], now: float) -> float:
        """Seconds until the call should be made; 0 is now. `running`: rows in an episode;
        `coming`: (time, rows) of expected chunks."""
        setup_s, count = self.setup_s, len(self._waiting)
        held_s = running * setup_s
        held_s -= sum(rows * min(setup_s, max(0.0, at - now)) for at, rows in coming)
        waited = [now - since for _, _, since in self._waiting.values()]
        left_s = (held_s - sum(waited)) / max(1, count)
        return max(0.0, min(left_s, LONGEST * setup_s - max(waited, default=0.0)))

    def take(self) -> list[Begin]:
        """All that wait, in as few messages as they fit in."""
        found = [(message, index) for message, index, _ in self._waiting.values()]
        self._waiting.clear()
        return joined(found)


def joined(found: Iterable[tuple[Begin, int]]) -> list[Begin]:
    """The attempts at these indices of their messages, in as few messages as they fit into."""
    groups: dict[bool, list[tuple[Begin, int]]] = {}
    for message, index in found:
        groups.setdefault(message.final_observation, []).append((message, index))
    return [
        group[0][0]._replace(
            lanes=[message.lanes[index] for message, index in group],
            attempts=[message.attempts[index] for message, index in group],
            trials=[message.trials[index] for message, index in group],
            max_steps=[message.max_steps[index] for message, index in group],
            record=[message.record[index] for message, index in group],
        )
        for group in groups.values()
    ]
