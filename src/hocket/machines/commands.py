"""Sites that are commands: processes of this machine, or of others, by ssh."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hocket.errors import UsageError
from hocket.system import machine
from hocket.system.child import Child
from hocket.workers.remote.ssh import SshConfig, SshHost, hosts_in

HANDED = struct.Struct(">qQ")
"""What precedes weights on a site's standard input, and what the site gives in return: a version or
number, and the count of bytes."""
GIVES = "HOCKET_GIVES"
"""The environment variable with the file descriptor on which a site gives data to its starter."""
END_S = 15.0
"""Seconds for a site to end by itself once it is told."""
RESTARTS = 3
"""Times that a site which was killed is started again, for each site that is asked for."""
_LOST = 255
"""ssh's code where the connection could not be made, or broke."""
_PORTS = range(20000, 60000)
"""Ports on other hosts that are forwarded here; one that is taken is tried again as another."""


class Outlet:
    """The pipe in which a site gives data to its starter, beside its connection. One thread calls
    it."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb")
        self._given = 0

    @classmethod
    def found(cls) -> Outlet | None:
        """The outlet that this process was started with."""
        fd = os.environ.pop(GIVES, "")
        return cls(int(fd)) if fd.isdigit() else None

    def give(self, data: bytes) -> int | None:
        """The number under which the starter has the data; None where nobody takes it."""
        try:
            self._file.write(HANDED.pack(self._given, len(data)))
            self._file.write(data)
            self._file.flush()
        except (OSError, ValueError):
            return None
        self._given += 1
        return self._given - 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class SiteProcess(Child):
    """The command of one site. It ends with its standard input."""

    def __init__(
        self, name: str, words: Sequence[str], credentials: str, *, gives: bool = False
    ) -> None:
        """`gives`: it has data for its starter, to be read from `given`."""
        self.name = name
        mine, theirs = os.pipe() if gives else (-1, -1)
        self._given = mine
        try:
            super().__init__(
                words,
                stdin=subprocess.PIPE,
                pass_fds=[theirs] if gives else [],
                env={**os.environ, GIVES: str(theirs)} if gives else None,
                failure=UsageError,
            )
        finally:
            if gives:
                os.close(theirs)
        self.tell(f"{credentials}\n".encode())

    def hand(self, version: int, data: bytes | memoryview) -> None:
        """Give it weights, beside its connection."""
        self.tell(HANDED.pack(version, len(data)), data)

    def given(self) -> Iterator[tuple[int, bytes]]:
        """What the site gives, each with its number, until it ends. For a thread of its own."""
        with open(self._given, "rb") as file:
            while len(head := file.read(HANDED.size)) == HANDED.size:
                number, size = HANDED.unpack(head)
                if len(data := file.read(size)) == size:
                    yield number, data


@dataclass(frozen=True, slots=True)
class Here:
    """A part of this machine, for one site: some of its cores, where there are enough."""

    cores: Sequence[int]
    label: ClassVar[str] = "local"
    """What sites there are called, with a number after it."""

    def words(self, port: int, name: str) -> list[str]:
        """The command of the site, which calls this port of this machine."""
        words = work_words(sys.executable, name, f"ws://127.0.0.1:{port}")
        return words + (["--cores", ",".join(map(str, self.cores))] if self.cores else [])


@dataclass(frozen=True, slots=True)
class BehindSsh:
    """Another host, for one site. It reaches the driver by a port that ssh forwards."""

    host: str
    config: SshConfig

    @property
    def label(self) -> str:
        return self.host.rpartition("@")[2]

    def words(self, port: int, name: str) -> list[str]:
        there = random.choice(_PORTS)
        forward = (f"RemoteForward={there} 127.0.0.1:{port}", "ExitOnForwardFailure=yes")
        config = dataclasses.replace(self.config, options=(*self.config.options, *forward))
        host = SshHost(self.host, config)
        command = shlex.join(work_words(config.python, name, f"ws://127.0.0.1:{there}"))
        return host.words(host.in_folder(command))


def work_words(python: str, name: str, url: str) -> list[str]:
    """The command of a site, which reads its key from its standard input."""
    return [python, "-m", "hocket", "work", "--name", name, "--connect", url, "--key-file", "-"]


def places_here(count: int) -> list[Here]:
    """`count` sites on this machine, which share its cores."""
    if count < 1:
        raise UsageError("Say how many sites, as in --machines local:3.")
    cores: list[int] = []
    if hasattr(os, "sched_getaffinity") and count <= machine.cores():
        cores = sorted(os.sched_getaffinity(0))
    ends = [place * len(cores) // count for place in range(count + 1)]
    return [Here(cores[begin:end]) for begin, end in itertools.pairwise(ends)]


def places_behind_ssh(hosts: str, config: SshConfig) -> list[BehindSsh]:
    """A site on each of these hosts, which are separated by commas."""
    return [BehindSsh(name, config) for name in hosts_in(hosts, "--machines")]


class CommandLauncher:
    """Starts a site at each place, and one that was killed again. All end with this process.
    Without places sites are started by whoever has machines, come by themselves, and outlive it."""

    def __init__(self, places: Sequence[Here | BehindSsh]) -> None:
        self.outlives = not places
        self._places = places
        self._restarts = RESTARTS * len(places)
        self._named = 0
        self._port = 0
        self._credentials = ""
        self._sites: dict[int, SiteProcess] = {}
        """By the index of their place."""
        self._is_started = False

    def start(self, port: int, credentials: str) -> None:
        self._port, self._credentials = port, credentials
        if not self._is_started:
            self._is_started = True
            for index in range(len(self._places)):
                self._start(index)

    def poll(self) -> Sequence[tuple[str, str]]:
        told = []
        for index, site in list(self._sites.items()):
            code = site.code()
            if code is None:
                continue
            del self._sites[index]
            told.append((site.name, site.ending()))
            site.end(END_S)
            if (code < 0 or code == _LOST) and self._restarts > 0:
                self._restarts -= 1
                self._start(index)
        return told

    def is_hopeless(self) -> bool:
        return not (self._sites or self.outlives)

    def close(self) -> None:
        ending, self._sites = self._sites, {}
        for site in ending.values():
            site.hang_up()
        for site in ending.values():
            site.end(END_S)

    def _start(self, index: int) -> None:
        self._named += 1
        place = self._places[index]
        name = f"{place.label}-{self._named}"
        words = place.words(self._port, name)
        self._sites[index] = SiteProcess(name, words, self._credentials)
