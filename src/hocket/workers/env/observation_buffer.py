"""What the policy reads of a worker's env, checked and laid where the parent sees it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hocket.core.data import Array, Observation
from hocket.errors import ObservationError
from hocket.workers.env import remarks
from hocket.workers.env.spaces import choose
from hocket.workers.shm import Layout, Memory


class ObservationBuffer:
    """Checks observations against the attempt's first one and lays them into shared memory."""

    def __init__(self, reads: tuple[str, ...] | None, history: int, slots: int = 1) -> None:
        """With more than one of `slots` observations are kept here, and `publish` copies them into
        the slots of shared memory: the policy may still read one of them."""
        self._reads = reads
        self._history = history
        self._slots = slots
        self._views: Observation = {}
        self.last = -1
        """Step of the newest observation."""
        self._streak = 0
        """How many observations of consecutive steps there are, the newest included."""
        self._extent = 0
        """Number of keys in the attempt's first observation."""
        self.layout: Layout | None = None
        self.memory: Memory = bytearray()
        """The newest observation: shared with the parent where there is one slot."""
        self._shared: Memory = self.memory

    def restart(self, arrays: Observation, allocate: Callable[[int], Memory]) -> bool:
        """Begin an attempt with the observation of its reset; true where the layout is new."""
        chosen = choose(arrays, self._reads)
        layout = Layout.of(chosen, self._history)
        is_new = layout != self.layout
        if is_new:
            self._shared = self.memory = allocate(layout.stride * self._slots)
            if self._slots > 1:
                self.memory = bytearray(layout.stride)
            self._views = layout.views(self.memory, 0)
            self.layout = layout
        for key, view in self._views.items():
            view[...] = chosen[key]
        self._extent = len(arrays)
        self.last, self._streak = 0, 1
        self.publish(0)
        return is_new

    def publish(self, chunk: int) -> None:
        """Let the parent read the newest observation, in the slot of this chunk."""
        if self._slots > 1:
            at = chunk % self._slots * len(self.memory)
            self._shared[at : at + len(self.memory)] = self.memory

    @property
    def not_finite(self) -> list[str]:
        """Keys that the policy reads and that hold numbers which are NaN or infinite."""
        return remarks.not_finite(self._views)

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
        """How many more steps have to be observed before the history at this one is whole."""
        streak = self._streak if step == self.last else 0
        # Seen at every step since the reset it is whole, however short: it is padded.
        return self._history - streak if streak < min(self._history, step + 1) else 0


def _changed(key: str, value: Array | None, held: Array, step: int) -> str:
    was = f"{np.dtype(held.dtype)} {held.shape}"
    if value is None:
        return f"The observation of step {step} lacks the key {key!r} ({was} at the reset)."
    return (
        f"The observation of step {step} has {key!r} as {value.dtype} {value.shape}; at the reset "
        f"it was {was}."
    )
