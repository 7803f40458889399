"""Arrays of a request in shared memory, where client and server are one user's on one machine.

The client owns a few sealed memory files. It hands each to the server once, as a descriptor over a
local socket of the server's, and names it in requests by a number: no frame can make the server
open anything. A file is used by one request at a time, and one whose request got no reply is given
up, since the server may still read it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket.adapters.policies.openpi.protocol import SharedArraysError
from hocket.core.data import Array
from hocket.system.machine import neighbourhood
from hocket.workers.shm import Layout, create_block, map_block

WORTH_BYTES = 1 << 17
"""Bytes of arrays from which sharing pays: smaller requests travel just as fast over the socket."""
KEPT_FILES = 8
"""Free files that a client keeps for its next requests."""
NUMBER = struct.Struct("<Q")
"""What goes with a file: the number that names it."""
TAKEN, REFUSED = b"\1", b"\0"
_HANDED_S = 10.0
"""Seconds for a server to take a file."""
_CREDENTIALS = struct.Struct("3i")


def this_machine() -> str | None:
    """Names machine, network namespace and user; None where memory cannot be shared."""
    try:
        return neighbourhood() if hasattr(os, "memfd_create") else None
    except OSError:
        return None


def peer_user(connected: socket.socket) -> int:
    """The user at the other end of a local socket."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(found)[1]
    return user


@dataclass(slots=True, eq=False)
class SharedFile:
    """One memory file that the server has taken."""

    number: int
    map: mmap.mmap
    description: dict[str, Any] = field(default_factory=dict)
    """Where each array lies, as a request says it."""


class SharedArrays:
    """Copies arrays into memory files, and describes where they are."""

    def __init__(self, channel: str, client: str) -> None:
        """Connect to a server's `channel`, for the requests of `client`."""
        self._free: list[SharedFile] = []
        self._numbers = itertools.count(1)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(_HANDED_S)
            self._socket.connect(f"\0{channel}")
            if peer_user(self._socket) != os.getuid():
                raise SharedArraysError("The server's local socket is another user's.")
            self._socket.send(client.encode())
        except BaseException as exc:
            self._socket.close()
            if isinstance(exc, OSError):
                raise SharedArraysError(f"The server's local socket is not there: {exc}") from exc
            raise

    def write(self, arrays: Mapping[str, Array]) -> SharedFile:
        """Copy arrays into a free file that is large enough, or a new one, and describe them."""
        layout = Layout.of(arrays, 1)
        file = self._take(layout.stride)
        for key, view in layout.views(file.map, 0).items():
            view[...] = arrays[key]
        entries = {entry.key: entry for entry in layout.entries}
        # In the order of the arrays, as they would travel.
        file.description = {"file": file.number, "layout": [entries[key] for key in arrays]}
        return file

    def release(self, file: SharedFile) -> None:
        """The reply has come: the file may be used again."""
        if len(self._free) < KEPT_FILES:
            self._free.append(file)

    def close(self) -> None:
        self._socket.close()
        self._free.clear()

    def _take(self, size: int) -> SharedFile:
        largest = max(self._free, key=lambda file: len(file.map), default=None)
        if largest is not None:
            self._free.remove(largest)
            if len(largest.map) >= size:
                return largest
            # Batches grow, and each file is handed over once.
            size = max(size, 2 * len(largest.map))
        number = next(self._numbers)
        try:
            descriptor = create_block("hocket-arrays", size)
            try:
                socket.send_fds(self._socket, [NUMBER.pack(number)], [descriptor])
                if self._socket.recv(1) != TAKEN:
                    raise SharedArraysError("The server took no shared memory.")
                return SharedFile(number, map_block(descriptor))
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise SharedArraysError(f"No memory can be shared: {exc}") from exc
