"""A real sshd on this machine, where one can be had."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.parts import missing
from support.processes import DEADLINE_S


@dataclass(frozen=True)
class Server:
    """An sshd of the tests."""

    folder: Path
    port: int
    user: str

    def options(self, known: str = "known") -> tuple[str, ...]:
        """What ssh must be told to reach it; `wrong` instead of `known` has another host's key."""
        return (
            f"Port={self.port}",
            f"IdentityFile={self.folder / 'user'}",
            f"UserKnownHostsFile={self.folder / known}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
        )

    def hosts(self, names: str = "127.0.0.1") -> str:
        return ",".join(f"{self.user}@{host}" for host in names.split(","))


@contextmanager
def running_sshd(folder: Path) -> Iterator[Server]:
    """An sshd with a key that lets in whoever has the files in the folder."""
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if program is None or shutil.which("ssh") is None or os.geteuid() != 0:
        pytest.skip(missing("sshd", "as root, apt-get install openssh-server"))
    for name in ("host", "other", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for known, key in (("known", "host"), ("wrong", "other")):
        line = (folder / f"{key}.pub").read_text()
        names = f"[127.0.0.1]:{port},[localhost]:{port}"
        (folder / known).write_text(f"{names} {line}")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\n"
        f"AuthorizedKeysFile {folder / 'user.pub'}\nPasswordAuthentication no\n"
        f"StrictModes no\nUsePAM no\nPidFile none\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    deadline = time.monotonic() + DEADLINE_S
    while b"listening" not in (folder / "log").read_bytes():
        assert daemon.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield Server(folder, port, getpass.getuser())
    daemon.terminate()
    daemon.wait()
