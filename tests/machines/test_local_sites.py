"""Sites as processes of this machine, with a real simulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hocket.errors import UsageError
from hocket.machines.commands import places_behind_ssh, places_here
from hocket.runs.config import EvalConfig
from hocket.workers.remote.ssh import SshConfig
from support.sites import assert_same, run_here


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_tasks_of_metaworld_are_the_same_to_the_bit_on_three_sites(tmp_path: Path) -> None:
    words = ["--env", "metaworld:mt10", "--policy", "reference", "--episodes", "2", "--lanes", "2"]
    words += ["--video", "none", "--exact", "--out", str(tmp_path / "there")]
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "eval", *words, "--machines", "local:3"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    config = EvalConfig(
        env=("metaworld:mt10",),
        policy="reference",
        episodes=2,
        lanes=2,
        video="none",
        exact=True,
    )
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")


def test_sites_here_share_out_the_cores_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    monkeypatch.setattr("hocket.system.machine.cores", lambda: 5)
    assert [place.cores for place in places_here(2)] == [[0, 1], [2, 3, 4]]
    assert [place.cores for place in places_here(6)] == [[]] * 6
    with pytest.raises(UsageError, match="how many"):
        places_here(0)


def test_a_site_behind_ssh_calls_a_port_that_is_forwarded() -> None:
    (place,) = places_behind_ssh("me@big", SshConfig(python="/opt/py", folder="/data/my runs"))
    words = place.words(7000, "big-1")
    command = words[-1]
    assert words[0] == "ssh"
    assert words[-3:-1] == ["--", "me@big"]
    assert command.startswith("cd '/data/my runs' && exec /opt/py -m hocket work")
    port = command.partition("ws://127.0.0.1:")[2].split()[0]
    assert f"-oRemoteForward={port} 127.0.0.1:7000" in words
    for hosts in ("", ",", "-oProxyCommand=evil", "a,-b"):
        with pytest.raises(UsageError, match="Name the hosts"):
            places_behind_ssh(hosts, SshConfig())
