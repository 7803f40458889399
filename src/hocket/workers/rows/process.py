"""A batched simulator in a worker process; what rows see is written where the parent reads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from mmap import mmap
from typing import NamedTuple

import numpy as np

from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Signature
from hocket.core.wire import END_OBSERVED, Executed, Message, Observed, Ready
from hocket.workers.env.host import Port
from hocket.workers.rows.host import RowsHost
from hocket.workers.rows.sim import on_host
from hocket.workers.shm import Control, Layout


class Block(NamedTuple):
    """Memory for the arrays of all lanes, while these have one signature."""

    number: int
    layout: Layout
    memory: memoryview | bytearray | mmap


class RowsProcess(RowsHost):
    """A RowsHost in a process of its own.

    Rows of one signature share a block of memory; a lane that changes its signature, because its
    next trial runs in another simulator, is told where its arrays lie from then on.
    """

    def __init__(self, spec: WorkerSpec, control: Control, port: Port, index: int) -> None:
        super().__init__(spec, control, self._pass_on, index)
        self._port = port
        self._blocks: dict[Signature, Block] = {}
        self._block_of: dict[int, Block] = {}
        """By lane: the block that the parent was told to look into."""

    def leave(self, lane: int, attempt: int, files: Sequence[str]) -> None:
        self._port.leave(lane, attempt, files)

    def _pass_on(self, message: Message) -> None:
        if isinstance(message, Ready):
            signatures = [self.signature(lane) for lane in message.lanes]
            for signature in dict.fromkeys(signatures):
                indices = [i for i, other in enumerate(signatures) if other == signature]
                self._port.post(self._lay_out(message, signature, indices))
            return
        if isinstance(message, (Executed, Observed)):
            lanes = message.lanes
            ends = message.ends if isinstance(message, Executed) else [0] * len(lanes)
            places = list(map(self._place, lanes, message.chunks, ends))
            seen = [not end or bool(end & END_OBSERVED) for end in ends]
            for lane, place in compress(zip(lanes, places, strict=True), seen):
                self._write(lane, place)
            if any(seen):
                message = message._replace(arrays=self._unshared(lanes, places))
        self._port.post(message)

    def _place(self, lane: int, chunk: int, end: int) -> int:
        """Where in a block the lane's observation lies: for the next chunk, or at the end."""
        slots = self._spec.slots
        return lane * slots + (chunk + (not end)) % slots

    def _lay_out(self, message: Ready, signature: Signature, indices: Sequence[int]) -> Ready:
        """The part of a message that concerns lanes of one signature, with where they lie."""
        lanes = [message.lanes[i] for i in indices]
        if signature not in self._blocks:
            layout = Layout.of(self.arrays(lanes[0]), 1)
            memory = self._port.allocate(layout.stride * self._spec.lanes * self._spec.slots)
            self._blocks[signature] = Block(self._port.block, layout, memory)
        block = self._blocks[signature]
        is_new = any(self._block_of.get(lane) is not block for lane in lanes)
        places = [lane * self._spec.slots for lane in lanes]
        for lane, place in zip(lanes, places, strict=True):
            self._block_of[lane] = block
            self._write(lane, place)
        return message._replace(
            lanes=lanes,
            attempts=[message.attempts[i] for i in indices],
            prompts=[message.prompts[i] for i in indices],
            layout=block.layout.entries if is_new else None,
            block=block.number,
            arrays=self._unshared(lanes, places),
        )

    def _write(self, lane: int, place: int) -> None:
        """Write what the lane sees now where the parent reads it."""
        block = self._block_of[lane]
        views = block.layout.views(block.memory, place)
        for key, array in self.arrays(lane).items():
            np.copyto(views[key], on_host(array))

    def _unshared(self, lanes: Sequence[int], places: Sequence[int]) -> bytes | None:
        """The memory of these lanes, where the parent cannot see it."""
        if self._port.is_shared:
            return None
        parts = []
        for lane, place in zip(lanes, places, strict=True):
            _, layout, memory = self._block_of[lane]
            parts.append(memory[place * layout.stride : (place + 1) * layout.stride])
        return b"".join(parts)
