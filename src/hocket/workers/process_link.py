"""The parent's end of the stream to a worker process of this machine."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hocket.core.data import Observation
from hocket.core.wire import Begin, Execute, Executed, Frames, Message, Ready, pack
from hocket.errors import WorkerFailed
from hocket.workers.shm import Control, Layout, map_block, read_tail

# Chosen by hand, with no benchmark row.
_READ = 1 << 12
"""Bytes for one read: an answer without arrays is far shorter."""
_READ_INLINE = 1 << 20
"""Bytes for one read where observations come over the stream too."""
_TAIL = 4096
"""Bytes of a worker's log that an error quotes."""
_SPEAK_S = 0.3
"""Seconds for a hanging worker to write its stacks, which a signal handler does at once."""
_LOG_LIMIT = 1 << 20
"""Bytes of a worker's log, which is in memory, beyond which it is cut to its tail."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessLink:
    """A Link over a socket, a control page and a log that the worker process shares.

    `end` is called once, by `kill`, and ends the process if it lives. `speak` makes the process
    write its stacks into its log. `explain` says why it ended where it left no exit status.
    """

    def __init__(
        self,
        stream: socket.socket,
        control: Control,
        log: int,
        lanes: int,
        end: Callable[[], None],
        speak: Callable[[], None],
        explain: Callable[[], str],
    ) -> None:
        stream.settimeout(0)
        self._stream = stream
        self._control = control
        self._log = log
        self._lanes = lanes
        self._end = end
        self._speak = speak
        self._explain = explain
        self._frames = Frames()
        self._out = bytearray()
        self._fds: deque[int] = deque()
        self._expects_fd = False
        self._blocks: dict[int, Any] = {}
        """The worker's shared memory, by its number."""
        self._inline: dict[int, memoryview] = {}
        """What a lane's arrays are copied into, where they come over the stream."""
        self._views: list[Observation] = [{} for _ in range(lanes)]
        self._old_tail = b""
        self._is_closed = False

    def send(self, message: Message) -> bool:
        kind = type(message)
        if kind is Begin:
            self._expects_fd = True
        elif kind is Execute:
            # Sent only once every earlier Begin of the lane was answered.
            self._expects_fd = self._lanes > 1
        data = pack(message)
        if self._out:
            self._out += data
            return self.flush()
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            return True  # `receive` will say why.
        if sent == len(data):
            return True
        self._out += data[sent:]
        return False

    def flush(self) -> bool:
        try:
            while self._out:
                del self._out[: self._stream.send(self._out)]
        except BlockingIOError:
            return False
        except ConnectionError:
            self._out.clear()
        return True

    def receive(self) -> list[Message]:
        data = self._read()
        if data is None:
            return []
        if not data:
            raise WorkerFailed(self._epitaph())
        messages = self._frames.feed(data)
        for message in messages:
            kind = type(message)
            if kind is Executed:
                if message.arrays is not None:  # type: ignore[union-attr]
                    self._fill(message.lanes, message.arrays)  # type: ignore[union-attr]
            elif kind is Ready:
                self._adopt(message)  # type: ignore[arg-type]
        return messages

    def fileno(self) -> int:
        return self._stream.fileno()

    def steps(self, lane: int) -> int:
        return self._control.steps(lane)

    def control(self, lane: int, word: int) -> None:
        self._control.set_word(lane, word)

    def arrays(self, lane: int) -> Observation:
        return self._views[lane]

    def memory(self) -> int | None:
        self._trim_log()
        try:
            with open(f"/proc/{self._control.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return None

    def kill(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._end()
        self._stream.close()
        self._control.close()
        os.close(self._log)
        while self._fds:
            os.close(self._fds.popleft())

    def last_words(self) -> str:
        """The end of the worker's log, once it has written the stacks of its threads there."""
        size = os.fstat(self._log).st_size
        self._speak()
        deadline = time.monotonic() + _SPEAK_S
        while time.monotonic() < deadline and os.fstat(self._log).st_size == size:
            time.sleep(0.01)
        time.sleep(0.01)
        return self._tail()

    def _read(self) -> bytes | None:
        """The bytes that have come: None for none yet, empty at the end of the stream."""
        try:
            size = _READ_INLINE if self._inline else _READ
            if not self._expects_fd:
                return self._stream.recv(size)
            data, fds, _, _ = socket.recv_fds(self._stream, size, 4)
            self._fds.extend(fds)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""
        return data

    def _adopt(self, ready: Ready) -> None:
        """Learn where lanes' arrays lie, from their first Ready and from each that moves them."""
        if ready.layout is not None and ready.arrays is not None:
            layout = Layout.from_plain(ready.layout, len(ready.arrays) // len(ready.lanes))
            for lane in ready.lanes:
                memory = bytearray(layout.stride)
                self._inline[lane] = memoryview(memory)
                self._views[lane] = layout.views(memory, 0)
        elif ready.layout is not None:
            if ready.block not in self._blocks:
                if self._lanes == 1:
                    self._blocks.clear()  # No lane is left that reads the old one.
                fd = self._fds.popleft()
                self._blocks[ready.block] = map_block(fd)
                os.close(fd)
            block = self._blocks[ready.block]
            layout = Layout.from_plain(ready.layout, len(block) // self._lanes)
            for lane in ready.lanes:
                self._inline.pop(lane, None)
                self._views[lane] = layout.views(block, lane)
        if ready.arrays is not None:
            self._fill(ready.lanes, ready.arrays)

    def _fill(self, lanes: Sequence[int], arrays: bytes) -> None:
        begin = 0
        for lane in lanes:
            held = self._inline[lane]
            held[:] = arrays[begin : begin + len(held)]
            begin += len(held)

    def _epitaph(self) -> str:
        """How the worker ended, and the end of its log."""
        status = self._control.exit_status
        who = f"The worker (pid {self._control.pid})"
        if status is None:
            text = self._explain()
        elif status < 0:
            text = f"{who} was killed by {_signal_name(-status)}."
        else:
            text = f"{who} exited with code {status}."
        tail = self._tail()
        return f"{text}\nIts last words:\n{tail}" if tail else text

    def _tail(self) -> str:
        data = self._old_tail + read_tail(self._log, _TAIL)
        return data[-_TAIL:].decode("utf-8", "replace").strip()

    def _trim_log(self) -> None:
        """Keep a chatty env's log from filling memory; its end stays."""
        if os.fstat(self._log).st_size > _LOG_LIMIT:
            self._old_tail = read_tail(self._log, _TAIL)
            os.ftruncate(self._log, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
