"""Workers behind a real sshd on this machine, where one can be had."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hocket.errors import UsageError
from hocket.testing import check_runtime
from hocket.workers.inbox import LaneFailed
from hocket.workers.remote.ssh import SshConfig, SshRuntime
from support.processes import DEADLINE_S
from support.rig import Rig, trials


@dataclass(frozen=True)
class Server:
    """An sshd of the tests."""

    folder: Path
    port: int
    user: str

    def runtime(self, known: str = "known", hosts: str = "127.0.0.1") -> SshRuntime:
        options = (
            f"Port={self.port}",
            f"IdentityFile={self.folder / 'user'}",
            f"UserKnownHostsFile={self.folder / known}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
        )
        names = ",".join(f"{self.user}@{host}" for host in hosts.split(","))
        return SshRuntime(names, SshConfig(options=options, python=sys.executable))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if program is None or shutil.which("ssh") is None or os.geteuid() != 0:
        pytest.skip("Tests of ssh need root and sshd: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("sshd")
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


def test_hosts_are_named_and_no_option_is_taken_for_one() -> None:
    for argument in ("", ",", "-oProxyCommand=evil", "a,-b"):
        with pytest.raises(UsageError, match="Name the hosts"):
            SshRuntime(argument)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_over_ssh_keep_every_rule_of_a_runtime(server: Server) -> None:
    check_runtime(server.runtime)


@pytest.mark.slow
def test_trials_are_the_same_to_the_bit_on_several_hosts(server: Server) -> None:
    with Rig() as rig:
        expected = rig.play(trials(4))
    with Rig(lanes=2, runtime=server.runtime(hosts="127.0.0.1,localhost")) as rig:
        assert rig.play(trials(4)) == expected


@pytest.mark.slow
def test_a_wrong_host_key_is_refused_in_the_words_of_ssh(server: Server) -> None:
    with Rig(runtime=server.runtime("wrong")) as rig:
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "Host key verification failed" in failed.message


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_named(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    runtime = SshRuntime("nobody@127.0.0.1", SshConfig(options=(f"Port={port}",)))
    with Rig(runtime=runtime) as rig:
        failed = rig.wait(LaneFailed)
    assert "nobody@127.0.0.1" in failed.message
    assert "refused" in failed.message
