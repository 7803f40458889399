"""A site's process is connected, or it ends: a driver that is gone holds no machine for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import support
from hocket.errors import UsageError
from hocket.machines.credentials import Credentials
from hocket.machines.site.link import DriverLink
from hocket.machines.site.site import Site
from hocket.records.ledger.view import LedgerView
from machines.test_site_faults import EVAL, TOYS, assert_whole, count, finish, start
from support.fault_proxy import FaultProxy
from support.processes import DEADLINE_S, children, wait_gone, wait_until
from support.sites import ThreadSites, assert_same, machines, run_here, toys

LEASE_S = 3.0
WAIT_S = 2.0


class OneDeserted(ThreadSites):
    """A site that loses its driver for good once it has begun, and then one that does not."""

    def __init__(self) -> None:
        super().__init__(0)
        self.deserted: list[Site] = []

    def start(self, port: int, credentials: str) -> None:
        self._where = (port, credentials)
        self.proxy = FaultProxy(port)
        self._url = lambda _: f"ws://127.0.0.1:{self.proxy.port}"
        self.wait_s = 0.5
        self.add(port, credentials)

    def poll(self) -> list[tuple[str, str]]:
        if len(self.sites) == 1 and self.sites[0].doing.partition(":")[0] == "running":
            self.proxy.__exit__()
            self._url, self.wait_s = lambda url: url, DEADLINE_S
            self.add(*self._where)
        return []


def test_a_site_whose_engine_waits_for_leases_ends_when_its_driver_is_gone(tmp_path: Path) -> None:
    launcher = OneDeserted()
    config = toys(episodes=8, env_config={"step_s": 0.002})
    with machines(launcher, lease_s=2.0) as elsewhere:
        from hocket.runs.run import Run

        with Run.new(config, tmp_path / "there") as run:
            assert run.finish(elsewhere=elsewhere).complete
        wait_until(lambda: bool(launcher.errors))
    assert "No driver answered" in str(launcher.errors[0])
    run_here(config, tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")


def test_a_connection_that_fails_in_an_unknown_way_ends_its_site() -> None:
    site = Site("odd")
    link = DriverLink("ws://127.0.0.1:not-a-port", Credentials(key="key"), site, wait_s=0.1)
    with pytest.raises(Exception, match=r"has failed|No driver answered"):
        site.work(link)


class Listening:
    """A run that listens, and the processes of its sites."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.where = ("--machines", "listen:127.0.0.1:0", "--site.lease", str(LEASE_S))
        self.drivers = [start(*EVAL, *TOYS, *words, *self.where, cwd=folder, log="log0")]
        wait_until(lambda: b"Sites join with" in (folder / "log0").read_bytes())
        told = (folder / "log0").read_text().partition("Sites join with: hocket ")[2]
        self.words = told.splitlines()[0].split()
        self.sites: list[subprocess.Popen[bytes]] = []

    def add(self, *words: str) -> subprocess.Popen[bytes]:
        name = f"s{len(self.sites)}"
        own = [*self.words, "--wait", str(WAIT_S), *words, "--name", name]
        self.sites.append(start(*own, cwd=self.folder, log=f"site-{name}"))
        return self.sites[-1]

    def said(self, number: int) -> str:
        return (self.folder / f"site-s{number}").read_text()

    def kill_driver(self) -> None:
        self.drivers[-1].kill()
        self.drivers[-1].wait()

    def resume(self) -> None:
        log = f"log{len(self.drivers)}"
        words = ("resume", "run", *self.where)
        self.drivers.append(start(*words, cwd=self.folder, log=log))

    def close(self) -> None:
        for process in (*self.drivers, *self.sites):
            process.kill()
            process.wait()


@pytest.fixture
def listening(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Listening]:
    words = getattr(request, "param", ("--lanes", "2", "--episodes", "200"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(support.__file__).parent.parent))
        found = Listening(tmp_path, *words)
    yield found
    found.close()


STUCK = ("--policy", "support.hanging_policies:Stuck", "--env", "toy:count", "--episodes", "9")


@pytest.mark.slow
@pytest.mark.parametrize("listening", [("--lanes", "2", "--episodes", "200"), STUCK], indirect=True)
def test_every_site_ends_after_its_driver(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One works, one is loading its policy, or hangs in it, one has never met a driver."""
    monkeypatch.setenv("PYTHONPATH", str(Path(support.__file__).parent.parent))
    listening.add()
    listening.add()
    wait_until(lambda: "waiting" not in listening.said(0).splitlines()[-1:], DEADLINE_S)
    wait_until(lambda: len(listening.said(1).splitlines()) > 1)
    listening.kill_driver()
    listening.add()
    below = [pid for site in listening.sites for pid in children(site.pid)]
    began = time.monotonic()
    for number, site in enumerate(listening.sites):
        assert site.wait(DEADLINE_S) != 0, listening.said(number)
        assert "No driver answered" in listening.said(number)
    assert time.monotonic() - began < 30 + WAIT_S + LEASE_S
    wait_gone(below)


@pytest.mark.slow
def test_a_site_ends_when_nothing_moves_on_its_connection_any_more(listening: Listening) -> None:
    port = int(listening.words[2].rpartition(":")[2])
    with FaultProxy(port) as proxy:
        listening.words[2] = f"wss://127.0.0.1:{proxy.port}"
        site = listening.add()
        wait_until(lambda: count(listening.folder / "run") > 2)
        proxy.is_stalled.set()
        assert site.wait(DEADLINE_S) != 0
    assert "No driver answered" in listening.said(0)


@pytest.mark.slow
@pytest.mark.parametrize("listening", [("--lanes", "1", "--episodes", "60")], indirect=True)
def test_a_driver_that_is_resumed_in_time_gets_all_of_its_sites_back(listening: Listening) -> None:
    run = listening.folder / "run"
    for _ in range(3):
        listening.add("--wait", "60")
    for wanted in (10, 30):
        wait_until(lambda wanted=wanted: count(run) > wanted)
        if wanted == 10:
            listening.kill_driver()
        else:
            os.kill(listening.drivers[-1].pid, signal.SIGTERM)
            listening.drivers[-1].wait()
        listening.resume()
    finish(listening.drivers[-1], listening.folder / "log2")
    for number, site in enumerate(listening.sites):
        assert site.wait(DEADLINE_S) == 0, listening.said(number)
    assert_whole(run, 60, listening.folder / "here")
    with LedgerView.open(run) as ledger:
        hosts = [leg.host for leg in ledger.legs()]
    assert sorted(hosts[-3:]) == ["s0", "s1", "s2"], hosts


def test_a_link_counts_from_when_the_driver_was_heard_last() -> None:
    site = Site("alone")
    link = DriverLink("ws://127.0.0.1:9", Credentials(key="key"), site, wait_s=0.0)
    with pytest.raises(UsageError, match=r"No driver answered .*: \w*Error"):
        site.work(link)
