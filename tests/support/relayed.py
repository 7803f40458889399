"""A runtime whose workers are reached through a relay, which runs in a thread of the tests."""

from __future__ import annotations

import socket
import threading

from hocket.core.contracts.runtime import WorkerSpec
from hocket.workers.remote import relay
from hocket.workers.remote.link import RemoteLink
from support.processes import DEADLINE_S


class Relayed:
    """What every remote runtime is, without a carrier."""

    def __init__(self) -> None:
        self.links: list[RemoteLink] = []
        self.far_ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def start(self, spec: WorkerSpec) -> RemoteLink:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=relay.serve, args=(theirs,), daemon=True)
        thread.start()
        self._threads.append(thread)
        self.far_ends.append(theirs)
        self.links.append(RemoteLink(ours, spec, lambda: None, lambda: "The relay is gone."))
        return self.links[-1]

    def close(self) -> None:
        for link in self.links:
            link.kill()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
