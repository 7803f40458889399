"""Arrays of a request in shared memory, where client and server are one user's on one machine.

The client owns a few anonymous memory files. It hands each to the server once, as a descriptor over
a local socket of the server's, and names it in requests by a number: no frame can make the server
open anything. A file has one size and is sealed against shrinking, so no client can pull memory
from under the server. It is used by one request at a time, and one whose request got no reply is
given up, since the server may still read it.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import mmap
import os
import reprlib
import secrets
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hocket.core.data import Array
from hocket.errors import WireError

WORTH_BYTES = 1 << 17
"""Bytes of arrays from which sharing pays: smaller requests travel just as fast over the socket."""
MAX_FILES = 256
"""Files of all clients that a server keeps mapped, each with a descriptor of its own; a client
beyond it sends its arrays instead."""
_NAME = "hocket-arrays"
_ALIGNMENT = 64
"""Bytes: a cache line, so that no array begins inside of another's."""
_KEPT = 8
"""Free files that a client keeps for its next requests; a server keeps four times as many mapped
for each. Chosen by hand; no benchmark row."""
_HANDED_S = 10.0
"""Seconds for a server to take a file. Chosen by hand; no benchmark row."""
_RETRY_S = 1.0
"""Seconds without new clients after the system refused one."""
_FILE = struct.Struct("<QQ")
_CREDENTIALS = struct.Struct("3i")
_TAKEN, _REFUSED = b"\1", b"\0"


class SharedArraysError(WireError):
    """Shared arrays cannot be read; the same request with its arrays inside can."""


def this_machine() -> str | None:
    """Names machine, network namespace and user; None where memory cannot be shared."""
    if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_ADD_SEALS"):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"
    except OSError:
        return None


class SharedArrays:
    """The client's side: copies arrays into memory files, and describes where they are."""

    def __init__(self, channel: str, client: str) -> None:
        """Connect to a server's `channel`, for the requests of `client`."""
        self._free: list[SharedFile] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_HANDED_S)
            self._socket.connect(f"\0{channel}")
            if _peer_user(self._socket) != os.getuid():
                raise SharedArraysError("The server's local socket is another user's.")
            self._socket.send(client.encode())
        except BaseException as exc:
            self._socket.close()
            if isinstance(exc, OSError):
                raise SharedArraysError(f"The server's local socket is not there: {exc}") from exc
            raise

    def write(self, arrays: Mapping[str, Array]) -> SharedFile:
        """Copy arrays into a free file that is large enough, or a new one, and describe them."""
        layout: list[tuple[str, tuple[int, ...], str, int]] = []
        end = 0
        for key, value in arrays.items():
            layout.append((key, value.shape, value.dtype.str, end))
            end += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        file = self._take(end)
        for (_, shape, dtype, offset), value in zip(layout, arrays.values(), strict=True):
            np.ndarray(shape, dtype, file.map, offset)[...] = value
        file.description = {"file": file.number, "layout": layout}
        return file

    def _take(self, size: int) -> SharedFile:
        largest = max(self._free, key=lambda file: file.size, default=None)
        if largest is not None:
            self._free.remove(largest)
            if largest.size >= size:
                return largest
            largest.close()
            size = max(size, 2 * largest.size)  # batches grow, and each file is handed over once
        file = SharedFile(size)
        try:
            socket.send_fds(self._socket, [_FILE.pack(file.number, file.size)], [file.descriptor])
            if self._socket.recv(1) != _TAKEN:
                raise SharedArraysError("The server took no shared memory.")
        except BaseException as exc:
            file.close()
            if isinstance(exc, OSError):
                raise SharedArraysError(f"The server's local socket is gone: {exc}") from exc
            raise
        return file

    def release(self, file: SharedFile) -> None:
        """The reply has come: the file may be used again. One whose request got no reply is closed
        instead, since the server may still read it."""
        if len(self._free) < _KEPT:
            self._free.append(file)
        else:
            file.close()

    def close(self) -> None:
        self._socket.close()
        while self._free:
            self._free.pop().close()


class SharedFile:
    """One anonymous memory file, this process's map of it, and what the server is told of it."""

    _numbers = itertools.count(1)

    def __init__(self, size: int) -> None:
        self.number = next(self._numbers)
        """Names it to the server. Descriptors are used again by the system, numbers never."""
        self.size = max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.map = mmap.mmap(self.descriptor, self.size)
        self.description: dict[str, Any] = {}

    def close(self) -> None:
        os.close(self.descriptor)


class SharedReader:
    """The server's side: takes memory files over a local socket, and reads what clients wrote.

    It lives on one event loop; `read` may be called from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the size of the largest file, and of all arrays of one request."""
        self._max_bytes = max_bytes
        self._listener: socket.socket | None = None
        self._channels: dict[socket.socket, str | None] = {}
        """Connections of clients, with the name of each once it has said it."""
        self._maps: dict[tuple[str, int], mmap.mmap] = {}
        """Files by client and number, those of each client in the order in which they came."""

    def listen(self) -> str | None:
        """Take files from now on; the name of the socket, None where memory cannot be shared."""
        if this_machine() is None:
            return None
        # Such a name leaves no file behind, and everybody may connect: who does is asked below.
        name = f"hocket-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(0)
        try:
            self._listener.bind(f"\0{name}")
            self._listener.listen()
        except OSError:
            self._listener.close()
            self._listener = None
            return None
        self._await_clients()
        return name

    def close(self) -> None:
        for channel in list(self._channels):
            self._drop(channel)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def read(self, client: str, description: Any) -> dict[str, Array]:
        """The arrays that a description of this client's names; SharedArraysError where it names
        none."""
        try:
            number, layout = description["file"], description["layout"]
            found = self._maps.get((client, number)) if type(number) is int else None
            if found is None:
                raise ValueError(f"no file {number!r} came over the server's local socket")
            arrays: dict[str, Array] = {}
            for key, shape, name, offset in layout:
                dtype = np.dtype(str(name))
                if dtype.kind not in "biuf":
                    raise ValueError(f"{key!r} has dtype {dtype}")
                # numpy checks the end of the buffer, not its beginning.
                if not all(type(n) is int and n >= 0 for n in (*shape, offset)):
                    raise ValueError(f"{key!r} lies at {offset!r} with shape {reprlib.repr(shape)}")
                arrays[str(key)] = np.ndarray(shape, dtype, found, offset)
            if sum(array.nbytes for array in arrays.values()) > self._max_bytes:
                raise ValueError(f"they have more than {self._max_bytes} bytes")
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise SharedArraysError(f"Shared arrays cannot be read: {exc!r}") from exc
        return arrays

    def _await_clients(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            channel, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is free: the client waits, and sends its arrays then
            loop.remove_reader(listener)
            loop.call_later(_RETRY_S, self._await_clients)
            return
        channel.settimeout(0)
        if _peer_user(channel) != os.getuid() or len(self._channels) >= MAX_FILES:
            channel.close()
            return
        self._channels[channel] = None
        loop.add_reader(channel, self._hear, channel)

    def _hear(self, channel: socket.socket) -> None:
        """Take one message of a client's: its name first, then a file in each."""
        try:
            said, files, _, _ = socket.recv_fds(channel, 256, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            self._drop(channel)
            return
        try:
            client = self._channels[channel]
            if client is None and said:
                self._channels[channel] = said.decode()
            elif client is not None and len(said) == _FILE.size and len(files) == 1:
                is_taken = self._map(client, files[0], *_FILE.unpack(said))
                channel.send(_TAKEN if is_taken else _REFUSED)
            else:
                self._drop(channel)
        except (OSError, UnicodeDecodeError):
            self._drop(channel)
        finally:
            for file in files:
                os.close(file)

    def _map(self, client: str, file: int, number: int, size: int) -> bool:
        """Map a client's file, if it is for sharing; the oldest go where it has too many."""
        mine = [key for key in self._maps if key[0] == client]
        for key in mine[: len(mine) + 1 - 4 * _KEPT]:
            del self._maps[key]
        if len(self._maps) >= MAX_FILES or not 0 < size <= self._max_bytes:
            return False
        try:
            # Asked first: it fails for whatever is no memory, and waits for nobody.
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            # Where memory comes in huge pages, one that cannot be had would kill who reads it.
            is_plain = os.fstatvfs(file).f_bsize == mmap.PAGESIZE
            if not seals & fcntl.F_SEAL_SHRINK or not is_plain or os.fstat(file).st_size < size:
                return False
            self._maps[client, number] = mmap.mmap(file, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return False
        return True

    def _drop(self, channel: socket.socket) -> None:
        client = self._channels.pop(channel)
        asyncio.get_running_loop().remove_reader(channel)
        channel.close()
        for key in [key for key in self._maps if key[0] == client]:
            del self._maps[key]


def _peer_user(connected: socket.socket) -> int:
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(found)[1]
    return user
