"""Workers behind a real sshd on this machine, where one can be had."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Iterator

import pytest

from hocket.errors import UsageError
from hocket.testing import check_runtime
from hocket.workers.notices import LaneFailed
from hocket.workers.remote.ssh import SshConfig, SshRuntime
from support.rig import Rig, trials
from support.sshd import Server, running_sshd


def runtime(server: Server, known: str = "known", hosts: str = "127.0.0.1") -> SshRuntime:
    config = SshConfig(options=server.options(known), python=sys.executable)
    return SshRuntime(server.hosts(hosts), config)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as found:
        yield found


def test_hosts_are_named_and_no_option_is_taken_for_one() -> None:
    for argument in ("", ",", "-oProxyCommand=evil", "a,-b"):
        with pytest.raises(UsageError, match="Name the hosts"):
            SshRuntime(argument)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_over_ssh_keep_every_rule_of_a_runtime(server: Server) -> None:
    check_runtime(functools.partial(runtime, server))


@pytest.mark.slow
def test_trials_are_the_same_to_the_bit_on_several_hosts(server: Server) -> None:
    with Rig() as rig:
        expected = rig.play(trials(4))
    with Rig(lanes=2, runtime=runtime(server, hosts="127.0.0.1,localhost")) as rig:
        assert rig.play(trials(4)) == expected


@pytest.mark.slow
def test_a_wrong_host_key_is_refused_in_the_words_of_ssh(server: Server) -> None:
    with Rig(runtime=runtime(server, "wrong")) as rig:
        failed = rig.wait(LaneFailed)
    assert failed.kind == "WorkerStart"
    assert "Host key verification failed" in failed.message


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_named(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nowhere = SshRuntime("nobody@127.0.0.1", SshConfig(options=(f"Port={port}",)))
    with Rig(runtime=nowhere) as rig:
        failed = rig.wait(LaneFailed)
    assert "nobody@127.0.0.1" in failed.message
    assert "refused" in failed.message
