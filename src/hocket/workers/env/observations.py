"""Where a worker's observations lie for the parent to read: the last `history` control steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import ObservationError
from hocket.workers.layout import Layout
from hocket.workers.spaces import choose


class ObservationBuffer:
    """Checks observations against the attempt's first one and lays them into shared memory."""

    def __init__(self, reads: tuple[str, ...] | None, history: int) -> None:
        self._reads = reads
        self._history = history
        self._views: Observation = {}
        self.last = -1
        """Step of the newest observation."""
        self._streak = 0
        """How many observations of consecutive steps there are, the newest included."""
        self._extent = 0
        """Number of keys in the attempt's first observation."""
        self.layout: Layout | None = None
        self.memory: Any = None

    def restart(self, arrays: Observation, allocate: Callable[[int], Any]) -> bool:
        """Begin an attempt with the observation of its reset; true where the layout is new."""
        chosen = choose(arrays, self._reads)
        layout = Layout.of(chosen, self._history)
        is_new = layout != self.layout
        if is_new:
            self.memory = allocate(layout.stride)
            self._views = layout.views(self.memory, 0)
            self.layout = layout
        for key, view in self._views.items():
            view[...] = chosen[key]
        self._extent = len(arrays)
        self.last, self._streak = 0, 1
        return is_new

    def push(self, arrays: Observation, step: int) -> None:
        """Add the observation of a step; with a history the oldest goes."""
        if self._reads is None and len(arrays) != self._extent:
            extra = sorted(set(arrays) - set(self._views))
            if extra:
                raise ObservationError(
                    f"The observation of step {step} has a new key {extra[0]!r}, which was not "
                    f"there at the reset."
                )
        for key, view in self._views.items():
            value = arrays.get(key)
            held = view if self._history == 1 else view[-1]
            if value is None or value.shape != held.shape or value.dtype != held.dtype:
                raise ObservationError(_changed(key, value, held, step))
            if self._history > 1:
                view[:-1] = view[1:].copy()
                view[-1] = value
            else:
                view[...] = value
        self._streak = self._streak + 1 if step == self.last + 1 else 1
        self.last = step

    def lacks(self, step: int) -> int:
        """How many observations of steps up to this one are missing of the history; above 0
        where the step itself was not observed. Before the first step the history is padded."""
        wanted = min(self._history, step + 1)
        return max(0, wanted - self._streak) if step == self.last else wanted

    def whole_in(self, step: int) -> int:
        """How many more steps have to be observed before there is a whole history, which also needs
        those that come in between; 0 where there is one at this step."""
        streak = self._streak if step == self.last else 0
        return self._history - streak if self.lacks(step) else 0


def _changed(key: str, value: Array | None, held: Array, step: int) -> str:
    was = f"{np.dtype(held.dtype)} {held.shape}"
    if value is None:
        return f"The observation of step {step} lacks the key {key!r} ({was} at the reset)."
    return (
        f"The observation of step {step} has {key!r} as {value.dtype} {value.shape}; at the reset "
        f"it was {was}."
    )
