"""Where the arrays of a worker's lanes lie, seen from the parent."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from hocket.core.data import Observation
from hocket.core.wire import Ready
from hocket.errors import WireError
from hocket.workers.shm import Layout, map_sealed


class LaneArrays:
    """Views of each lane's last observation: in memory that the worker shares, or in memory here,
    which what comes over the stream is copied into."""

    def __init__(self, lanes: int, slots: int = 1) -> None:
        """With more than one of `slots`, the observation for chunk k lies in slot k modulo it."""
        self._lanes = lanes
        self._slots = slots
        self.fds: deque[int] = deque()
        """Descriptors that came with messages, and that no Ready has asked for yet."""
        self._blocks: dict[int, Any] = {}
        """The worker's shared memory, by its number."""
        self._inline: dict[int, memoryview] = {}
        """What a lane's arrays are copied into, where they come over the stream: by place, which is
        `lane * slots + slot`."""
        self._views: list[Observation] = [{} for _ in range(lanes * slots)]

    @property
    def are_inline(self) -> bool:
        """True where some lane's arrays come over the stream."""
        return bool(self._inline)

    def views(self, lane: int, chunk: int) -> Observation:
        return self._views[lane * self._slots + chunk % self._slots]

    def adopt(self, ready: Ready) -> None:
        """Learn where lanes' arrays lie, from their first Ready and from each that moves them.
        Raises WireError where they do not lie in what the worker gave."""
        if ready.layout is not None and ready.arrays is not None:
            layout = Layout.from_plain(ready.layout, len(ready.arrays) // len(ready.lanes))
            for place in self._places(ready.lanes):
                memory = bytearray(layout.stride)
                self._inline[place] = memoryview(memory)
                self._views[place] = layout.views(memory, 0)
        elif ready.layout is not None:
            block = self._block(ready.block)
            layout = Layout.from_plain(ready.layout, len(block) // len(self._views))
            for place in self._places(ready.lanes):
                self._inline.pop(place, None)
                self._views[place] = layout.views(block, place)
        if ready.arrays is not None:
            self.fill(ready.lanes, ready.arrays, [0] * len(ready.lanes))

    def _places(self, lanes: Sequence[int]) -> list[int]:
        return [lane * self._slots + slot for lane in lanes for slot in range(self._slots)]

    def fill(self, lanes: Sequence[int], arrays: bytes, chunks: Sequence[int]) -> None:
        """Take observations that came over the stream, each for this chunk of its lane."""
        begin, whole = 0, memoryview(arrays)
        for lane, chunk in zip(lanes, chunks, strict=True):
            held = self._inline.get(lane * self._slots + chunk % self._slots)
            part = whole[begin : begin + len(held)] if held is not None else b""
            if held is None or len(part) != len(held):
                raise WireError("The arrays of a message are not those of its lanes.")
            held[:] = part
            begin += len(held)

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.popleft())

    def _block(self, number: int) -> Any:
        if number not in self._blocks:
            if self._lanes == 1:
                self._blocks.clear()  # No lane is left that reads the old one.
            if not self.fds:
                raise WireError("The memory of a worker's arrays did not come with its message.")
            fd = self.fds.popleft()
            try:
                self._blocks[number] = map_sealed(fd)
            finally:
                os.close(fd)
        return self._blocks[number]
