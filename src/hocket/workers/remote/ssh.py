"""Workers on other machines, by the system's own ssh: its keys, hosts and configuration count.

A connection for each lane carries the stream by its standard input and output. The code goes before
the first message, so that nothing of hocket's has to be there.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hocket.core.contracts.runtime import Usability, WorkerSpec
from hocket.errors import UsageError, WorkerFailed
from hocket.workers.link import Link
from hocket.workers.remote.archive import LOADER, code_message
from hocket.workers.remote.dialing import dial
from hocket.workers.shm import create_file, read_tail

# Chosen by hand.
_LOGINS = 8
"""Connections that are made to a host at the same time: by default a server refuses more than
ten."""
_LOGIN_S = 60.0
"""Seconds for a login."""
_END_S = 4.0
"""Seconds for a connection to end by itself."""
_READ = 1 << 18
_TAIL = 3000
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


class SshRuntime:
    """Spreads workers over hosts by their cores."""

    Config = SshConfig

    def __init__(self, argument: str = "", config: SshConfig | None = None) -> None:
        names = [name for name in argument.split(",") if name]
        if not names or any(name.startswith("-") for name in names):
            raise UsageError("Name the hosts, as in --runtime ssh:user@host,user@other.")
        self._config = config or SshConfig()
        self._hosts = [Host(name, self._config) for name in names]
        # Guards that hosts are counted right, and that every connection is ended by `close`.
        self._lock = threading.Lock()
        self._connections: list[Connection] = []

    @classmethod
    def examine(cls) -> Usability:
        found = shutil.which("ssh")
        if found is None:
            advice = "apt-get install openssh-client"
            return Usability(is_usable=False, detail="There is no command 'ssh'.", advice=advice)
        return Usability(is_usable=True, detail=found)

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a worker on the host with the most cores left; a thread connects."""
        if spec.python is not None:
            raise UsageError("--env-python is of this machine; over ssh: --runtime.python.")

        def attach(stream: socket.socket) -> Connection:
            host = self._choose()
            connection = Connection(host, self._release, stream)
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

    def _choose(self) -> Host:
        if len(self._hosts) > 1:
            for host in self._hosts:
                host.count_cores()
        with self._lock:
            # A host that failed last is asked last.
            best = min(self._hosts, key=lambda host: (host.failures, (host.lanes + 1) / host.cores))
            best.lanes += 1
            return best

    def _release(self, host: Host, has_failed: bool) -> None:  # noqa: FBT001
        with self._lock:
            host.lanes -= 1
            host.failures = host.failures + 1 if has_failed else 0


class Host:
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
                done = subprocess.run(
                    self.words("nproc"),
                    capture_output=True,
                    text=True,
                    timeout=_LOGIN_S,
                    check=True,
                )
                self.cores = max(1, int(done.stdout.split()[-1]))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                self.failures += 1

    def words(self, command: str) -> list[str]:
        """The command line that runs a command there."""
        options = [f"-o{option}" for option in (*self.config.options, *_OPTIONS)]
        return ["ssh", "-T", "-x", *options, "--", self.name, command]


class Connection:
    """The ssh process of one worker. What comes goes straight into the stream; what is sent, the
    code first, goes by a thread."""

    def __init__(
        self, host: Host, release: Callable[[Host, bool], None], stream: socket.socket
    ) -> None:
        """`release` is told once, when the connection is over, whether it failed."""
        self._host = host
        self._release = release
        self._stream = stream
        self._log = create_file("hocket-ssh-log", 0)
        self._has_begun = False
        command = f"{shlex.quote(host.config.python)} -c {shlex.quote(LOADER)}"
        if host.config.folder:
            command = f"cd {shlex.quote(host.config.folder)} && exec {command}"
        try:
            self._process = subprocess.Popen(
                host.words(command),
                stdin=subprocess.PIPE,
                stdout=stream.fileno(),
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as exc:
            os.close(self._log)
            raise WorkerFailed(f"ssh cannot be run: {exc}") from exc
        self._threads = [threading.Thread(target=self._send, daemon=True)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Do nothing: ssh ends with its stream, and so does what it runs."""

    def explain(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        said = read_tail(self._log, _TAIL).decode("utf-8", "replace").strip()
        code = self._process.returncode
        return f"ssh to {self._host.name} ended with code {code}.\n{said}".strip()

    def close(self) -> None:
        """Wait for ssh to end, by force in the end."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for thread in self._threads:
            thread.join()
        os.close(self._log)

    def _send(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            # The code is longer than a pipe holds: it is written when somebody reads it there.
            with self._host.logins:
                pipe.write(code_message())
                pipe.flush()
            self._has_begun = True
            while data := self._wait():
                pipe.write(data)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _wait(self) -> bytes:
        """The next bytes to send. (ssh makes its output, which is this socket too, one that does
        not wait.)"""
        while True:
            poller = select.poll()
            poller.register(self._stream, select.POLLIN)
            poller.poll()
            with contextlib.suppress(BlockingIOError):
                return self._stream.recv(_READ)

    def _watch(self) -> None:
        self._process.wait()
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._stream.close()
        self._release(self._host, not self._has_begun)
