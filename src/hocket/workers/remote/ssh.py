"""Workers on other machines, by the system's own ssh: its keys, hosts and configuration count.

A connection for each lane carries the stream by its standard input and output. The code goes before
the first message, so that nothing of hocket's has to be there.
"""

from __future__ import annotations

import contextlib
import select
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Usability, WorkerSpec
from hocket.errors import UsageError
from hocket.system.child import Child
from hocket.system.waits import awaiting
from hocket.workers.remote.archive import LOADER, code_message
from hocket.workers.remote.link import dial

_END_S = 4.0
"""Seconds for the program to end by itself."""
_READ = 1 << 18


class Tunnel:
    """An Attachment: a program that runs `python -c LOADER` elsewhere. What comes goes straight
    into the stream; what is sent, the code first, goes by a thread."""

    def __init__(
        self,
        words: Sequence[str],
        name: str,
        stream: socket.socket,
        *,
        login: contextlib.AbstractContextManager[object] | None = None,
        on_end: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`login` is held until the far end has taken the code. `on_end` is called once, when the
        program has ended: with true where it ended before that."""
        self._name = name
        self._stream = stream
        self._login = login or contextlib.nullcontext()
        self._on_end = on_end
        self._has_begun = False
        self._child = Child(words, stdin=subprocess.PIPE, stdout=stream.fileno())
        self._threads = [threading.Thread(target=self._send, daemon=True)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Do nothing: the program ends with its stream, and so does what it runs."""

    def explain(self) -> str:
        return f"{self._name} {self._child.ending()}"

    def close(self) -> None:
        """Wait for it to end, by force in the end."""
        if self._child.code(_END_S) is None:  # Its thread may be writing: it is not hung up.
            self._child.kill()
        for thread in self._threads:
            thread.join()
        self._child.end(0.0)

    def _send(self) -> None:
        pipe = self._child.pipe
        assert pipe is not None
        with contextlib.suppress(OSError):
            # The code is longer than a pipe holds: it is written when somebody reads it there.
            with self._login, awaiting(self._name):
                pipe.write(code_message())
                pipe.flush()
            self._has_begun = True
            while data := self._wait():
                pipe.write(data)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _wait(self) -> bytes:
        """The next bytes to send. (ssh makes its output, which is this socket, non-blocking.)"""
        while True:
            poller = select.poll()
            poller.register(self._stream, select.POLLIN)
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                return self._stream.recv(_READ)

    def _watch(self) -> None:
        self._child.code(wait_s=None)
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._stream.close()
        self._on_end(not self._has_begun)


_LOGINS = 8
"""Connections made to a host at the same time; by default a server refuses more than ten."""
_LOGIN_S = 60.0
"""Seconds for a login."""
_OPTIONS = (
    "BatchMode=yes",  # Nobody is there to type a password.
    "ConnectTimeout=20",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """How workers are started there."""

    python: str = "python3"
    """The interpreter there, 3.10 or later, with numpy, gymnasium and the simulator."""
    folder: str = ""
    """The folder to start in there, whose modules can be imported."""
    options: tuple[str, ...] = ()
    """Options of ssh as its configuration has them: Port=2222."""


def hosts_in(argument: str, flag: str) -> list[str]:
    """The hosts that a flag names, with commas between."""
    names = [name for name in argument.split(",") if name]
    if not names or any(name.startswith("-") for name in names):
        raise UsageError(f"Name the hosts, as in {flag} ssh:user@host,user@other.")
    return names


class SshRuntime:
    """Spreads workers over hosts by their cores."""

    Config = SshConfig

    def __init__(self, argument: str = "", config: SshConfig | None = None) -> None:
        self._config = config or SshConfig()
        self._hosts = [SshHost(name, self._config) for name in hosts_in(argument, "--runtime")]
        # Guards that hosts are counted right, and that every connection is ended by `close`.
        self._lock = threading.Lock()
        self._connections: list[Tunnel] = []

    @classmethod
    def examine(cls) -> Usability:
        if found := shutil.which("ssh"):
            return Usability(is_usable=True, detail=found)
        advice = "apt-get install openssh-client"
        return Usability(is_usable=False, detail="There is no command 'ssh'.", advice=advice)

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker on the host with the most cores left; a thread connects."""
        if spec.python is not None:
            raise UsageError("--env-python is of this machine; over ssh: --runtime.python.")

        def attach(stream: socket.socket) -> Tunnel:
            host = self._choose()
            connection = Tunnel(
                host.words(host.command),
                f"ssh to {host.name}",
                stream,
                login=host.logins,
                on_end=lambda has_failed: self._release(host, has_failed),
            )
            with self._lock:
                over = [one for one in self._connections if one.is_over]
                self._connections = [one for one in self._connections if one not in over]
                self._connections.append(connection)
            for one in over:
                one.close()
            return connection

        return dial(spec, attach)

    def close(self) -> None:
        with self._lock:
            ending, self._connections = self._connections, []
        for connection in ending:
            connection.close()

    def _choose(self) -> SshHost:
        if len(self._hosts) > 1:
            for host in self._hosts:
                host.count_cores()
        with self._lock:
            # A host that failed last is asked last.
            best = min(self._hosts, key=lambda host: (host.failures, (host.lanes + 1) / host.cores))
            best.lanes += 1
            return best

    def _release(self, host: SshHost, has_failed: bool) -> None:  # noqa: FBT001
        with self._lock:
            host.lanes -= 1
            host.failures = host.failures + 1 if has_failed else 0


class SshHost:
    """A machine, how many lanes it has, and how many cores."""

    def __init__(self, name: str, config: SshConfig) -> None:
        self.name = name
        self.config = config
        self.lanes = 0
        self.failures = 0
        self.cores = 1
        # Guards that its cores are asked for once.
        self._lock = threading.Lock()
        self._is_counted = False
        self.logins = threading.Semaphore(_LOGINS)

    def count_cores(self) -> None:
        """Ask how many cores there are; one that does not say counts as one, and comes last."""
        with self._lock:
            if self._is_counted:
                return
            self._is_counted = True
            try:
                told = subprocess.check_output(
                    self.words("nproc"), stderr=subprocess.DEVNULL, text=True, timeout=_LOGIN_S
                )
                self.cores = max(1, int(told.split()[-1]))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                self.failures += 1

    @property
    def command(self) -> str:
        """What brings up a far end there."""
        return self.in_folder(shlex.join([self.config.python, "-c", LOADER]))

    def in_folder(self, command: str) -> str:
        """The command, run in the folder that the configuration names."""
        folder = self.config.folder
        return f"cd {shlex.quote(folder)} && exec {command}" if folder else command

    def words(self, command: str) -> list[str]:
        """The command line that runs a command there."""
        options = [f"-o{option}" for option in (*self.config.options, *_OPTIONS)]
        return ["ssh", "-T", "-x", *options, "--", self.name, command]
