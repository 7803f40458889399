"""Sites as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

from hocket.core import machine
from hocket.errors import UsageError
from hocket.workers.shm import create_file, read_tail

_TAIL = 2000
_END_S = 15.0
"""Seconds for a site to end by itself once it is told."""
_RESTARTS = 3
"""Times that a site which was killed is started again, for each that was asked for."""


class SiteProcess:
    """The command of one site. It ends with its standard input."""

    def __init__(self, name: str, words: Sequence[str], credentials: str) -> None:
        self.name = name
        self._log = create_file("hocket-site-log", 0)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as exc:
            os.close(self._log)
            raise UsageError(f"{words[0]!r} cannot be run: {exc}") from exc
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended, and `code` says how.
            self._process.stdin.write(f"{credentials}\n".encode())
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """How it ended; None while it lives."""
        return self._process.poll()

    def account(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        said = read_tail(self._log, _TAIL).decode("utf-8", "replace").strip()
        return f"{how}.\n{said}".strip()

    def hang_up(self) -> None:
        """Tell it to end."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """Wait for it to end, by force in the end."""
        self.hang_up()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log)


class LocalLauncher:
    """Starts so many sites here, each on its share of the cores where there are enough."""

    outlives = False

    def __init__(self, count: int) -> None:
        if count < 1:
            raise UsageError("Say how many sites, as in --machines local:3.")
        self._count = count
        self._restarts = _RESTARTS * count
        self._named = 0
        self._port = 0
        self._credentials = ""
        self._sites: list[SiteProcess] = []

    def start(self, port: int, credentials: str) -> None:
        self._port, self._credentials = port, credentials
        while len(self._sites) < self._count:
            self._sites.append(self._start_one(len(self._sites)))

    def poll(self) -> Sequence[tuple[str, str]]:
        ended = [site for site in self._sites if site.code() is not None]
        told = []
        for site in ended:
            place = self._sites.index(site)
            self._sites.remove(site)
            told.append((site.name, site.account()))
            code = site.code()
            site.close()
            if code is not None and code < 0 and self._restarts > 0:
                self._restarts -= 1
                self._sites.insert(place, self._start_one(place))
        return told

    def is_hopeless(self) -> bool:
        return not self._sites

    @property
    def pids(self) -> list[int]:
        """The processes of the sites."""
        return [site.pid for site in self._sites]

    def close(self) -> None:
        ending, self._sites = self._sites, []
        for site in ending:
            site.hang_up()
        for site in ending:
            site.close()

    def _start_one(self, place: int) -> SiteProcess:
        self._named += 1
        name = f"local-{self._named}"
        words = [sys.executable, "-m", "hocket", "work", "--name", name]
        words += ["--connect", f"ws://127.0.0.1:{self._port}", "--key-file", "-"]
        if share := _share_of_cores(place, self._count):
            words += ["--cores", ",".join(map(str, share))]
        return SiteProcess(name, words, self._credentials)


def _share_of_cores(place: int, count: int) -> list[int]:
    """The cores of one site of so many; none where there are too few to share out."""
    if not hasattr(os, "sched_getaffinity") or count > machine.cores():
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[place * len(cores) // count : (place + 1) * len(cores) // count]
