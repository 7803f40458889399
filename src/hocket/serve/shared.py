"""Memory that clients of this machine share: files that come over a local socket, and the arrays in
them. `hocket.adapters.policies.openpi.shared` is the client's side."""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import socket
from typing import Any

from hocket.adapters.policies.openpi.protocol import SharedArraysError
from hocket.adapters.policies.openpi.shared import (
    KEPT_FILES,
    NUMBER,
    REFUSED,
    TAKEN,
    peer_user,
    this_machine,
)
from hocket.core.data import Array
from hocket.errors import WireError
from hocket.workers.shm import Layout, map_sealed

MAX_FILES = 256
"""Files of all clients that a server keeps mapped, each with a descriptor of its own; a client
beyond it sends its arrays instead."""
_RETRY_S = 1.0
"""Seconds without new clients after the system refused one."""


class SharedReader:
    """Takes memory files over a local socket, and reads what clients wrote.

    It lives on one event loop; `read` may be called from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of the largest file, and of all arrays of one request."""
        self._max_bytes = max_bytes
        self._listener: socket.socket | None = None
        self._channels: dict[socket.socket, str | None] = {}
        """Connections of clients; the name of each, once it has said it."""
        self._maps: dict[tuple[str, int], mmap.mmap] = {}
        """Files by client and number, each client's in order of arrival."""

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
            found = self._maps.get((client, description["file"]))
            if found is None:
                raise ValueError("no such file came over the server's local socket")
            arrays = Layout.from_plain(description["layout"], len(found)).views(found, 0)
            for key, array in arrays.items():
                if array.dtype.kind not in "biuf":
                    raise ValueError(f"{key!r} has dtype {array.dtype}")
            if sum(array.nbytes for array in arrays.values()) > self._max_bytes:
                raise ValueError(f"they have more than {self._max_bytes} bytes")
        except (LookupError, TypeError, ValueError, OverflowError, WireError) as exc:
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
        if peer_user(channel) != os.getuid() or len(self._channels) >= MAX_FILES:
            channel.close()
            return
        self._channels[channel] = None
        loop.add_reader(channel, self._hear, channel)

    def _hear(self, channel: socket.socket) -> None:
        """Take one message of a client: its name first, then a file in each."""
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
            elif client is not None and len(said) == NUMBER.size and len(files) == 1:
                is_taken = self._map(client, files[0], *NUMBER.unpack(said))
                channel.send(TAKEN if is_taken else REFUSED)
            else:
                self._drop(channel)
        except (OSError, UnicodeDecodeError):
            self._drop(channel)
        finally:
            for file in files:
                os.close(file)

    def _map(self, client: str, file: int, number: int) -> bool:
        """Map a client's sealed file; the oldest go where it has too many. True where it is
        mapped."""
        mine = [key for key in self._maps if key[0] == client]
        for key in mine[: len(mine) + 1 - 4 * KEPT_FILES]:
            del self._maps[key]
        if len(self._maps) >= MAX_FILES or os.fstat(file).st_size > self._max_bytes:
            return False
        try:
            self._maps[client, number] = map_sealed(file, mmap.ACCESS_READ)
        except (OSError, ValueError, WireError):
            return False
        return True

    def _drop(self, channel: socket.socket) -> None:
        client = self._channels.pop(channel)
        asyncio.get_running_loop().remove_reader(channel)
        channel.close()
        for key in [key for key in self._maps if key[0] == client]:
            del self._maps[key]
