"""A process that this one starts, follows and ends."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hocket.errors import HocketError, WorkerFailed

_ENDING_S = 1.0
"""Seconds for a process whose streams have ended to end too."""
_KILL_S = 5.0
"""Seconds for a killed process to be gone."""
_TAIL = 4096
"""Bytes of what it printed that an error quotes."""
_READ = 1 << 16


def read_tail(fd: int, size: int) -> bytes:
    return os.pread(fd, size, max(0, os.fstat(fd).st_size - size))


class Child:
    """A process of a session of its own: Ctrl-C is for this one alone. What it prints goes to a
    nameless file, but for what is read here."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        failure: type[HocketError] = WorkerFailed,
    ) -> None:
        """`stdin` may be PIPE, whose end tells it to end; `stdout` PIPE, for `line`, or a file.
        Raises `failure` where the command cannot be run."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=self._log if stdout is None else stdout,
                stderr=self._log,
                pass_fds=pass_fds,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as exc:
            self._log.close()
            raise failure(f"{words[0]!r} cannot be run: {exc}") from exc
        self.pid = self._process.pid
        self.pipe = self._process.stdin
        self._unread = b""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def code(self, wait_s: float | None = 0.0) -> int | None:
        """Its exit code, negative for a signal; None where it still runs after `wait_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.returncode

    def tail(self) -> str:
        if self._log.closed:
            return ""
        return read_tail(self._log.fileno(), _TAIL).decode("utf-8", "replace").strip()

    def ending(self, hint: str = "") -> str:
        """How it ended, in words that follow its name, then `hint`, then the end of what it
        printed; waits for a moment where it runs."""
        code = self.code(_ENDING_S)
        how = "still runs" if code is None else f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return f"{how}.{hint}\n{self.tail()}".strip()

    def tell(self, *parts: bytes | memoryview) -> None:
        """Write to its standard input; one that has ended says so by its code."""
        assert self.pipe is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            for part in parts:
                self.pipe.write(part)
            self.pipe.flush()

    def line(self, timeout_s: float) -> str:
        """The next line of its standard output; empty where it ends first, or is silent."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                return ""
            if not (some := os.read(self._process.stdout.fileno(), _READ)):
                return ""
            self._unread += some
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace")

    def hang_up(self) -> None:
        """End its standard input, which tells it to end."""
        if self.pipe is not None:
            with contextlib.suppress(OSError):
                self.pipe.close()

    def kill(self) -> None:
        self._process.kill()
        self.code(_KILL_S)

    def end(self, wait_s: float) -> None:
        """Hang up, let it end within `wait_s`, then end it by force. Twice is safe."""
        self.hang_up()
        if self.code(wait_s) is None:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
