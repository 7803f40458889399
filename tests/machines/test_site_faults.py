"""Sites and drivers that are killed, stopped and cut off: nothing is lost, and nothing counts
twice."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hocket.core.data import Outcome
from hocket.errors import RunFolderError
from hocket.machines import protocol
from hocket.machines.deliveries import Receipts
from hocket.records.ledger.view import LedgerView
from hocket.workers.remote.websocket import KEY_HEADER
from support.fault_proxy import FaultProxy
from support.processes import DEADLINE_S, children, wait_gone, wait_until
from support.sites import ThreadSites, assert_same, attempts, machines, run_here, run_on, toys

SLOW_TOYS = {"step_s": 0.02, "length_min": 20, "length_max": 40}


def test_a_connection_that_is_cut_in_the_middle_of_a_file_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PART", 300)
    take, cuts, proxies = Receipts.take, [], []

    def cut_some(self: Receipts, name: object, trial: object, piece: object) -> None:
        take(self, name, trial, piece)  # type: ignore[arg-type]
        if piece.begin == 300 and len(cuts) < 3:  # type: ignore[attr-defined]
            cuts.append(name)
            for proxy in proxies:
                proxy.drop_all()

    def through_a_proxy(url: str) -> str:
        proxies.append(FaultProxy(int(url.rpartition(":")[2])))
        return f"ws://127.0.0.1:{proxies[-1].port}"

    monkeypatch.setattr(Receipts, "take", cut_some)
    try:
        run_on(toys(episodes=8), tmp_path / "there", ThreadSites(2, through_a_proxy))
    finally:
        for proxy in proxies:
            proxy.__exit__()
    assert len(cuts) == 3
    run_here(toys(episodes=8), tmp_path / "here")
    assert_same(tmp_path / "here", tmp_path / "there")
    assert not [error for *_, error in attempts(tmp_path / "there") if error]


def test_a_site_without_the_key_is_refused(tmp_path: Path) -> None:
    class OneStranger(ThreadSites):
        def start(self, port: int, credentials: str) -> None:
            super().start(port, credentials)
            self.add(port, "guess")

    launcher = OneStranger(1)
    run_on(toys(env_config={"step_s": 0.003}), tmp_path / "run", launcher)
    wait_until(lambda: bool(launcher.errors))
    assert "key is missing or wrong" in str(launcher.errors[0])


def test_strangers_print_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hello = (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    )
    said = [b"", b"\x16\x03\x01\xff", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 10_000]
    said += [f"{hello}{KEY_HEADER}: a\r\n{KEY_HEADER}: b\r\n\r\n".encode()]
    said += [f"{hello}{KEY_HEADER}: ".encode() + b"\xff\r\n\r\n"]

    answers: list[bytes] = []

    class Besieged(ThreadSites):
        def start(self, port: int, credentials: str) -> None:
            self._threads.append(threading.Thread(target=self.besiege, args=(port, credentials)))
            self._threads[0].start()

        def besiege(self, port: int, credentials: str) -> None:
            for words in said:
                with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as stranger:
                    stranger.sendall(words)
                    if words.endswith(b"\r\n\r\n"):
                        answers.append(stranger.recv(100))
            self.add(port, credentials)

    run_on(toys(), tmp_path / "run", Besieged(1))
    assert [words[:12] for words in answers] == [b"HTTP/1.1 401"] * 3
    assert "Traceback" not in capfd.readouterr().err


def test_a_full_disk_of_the_driver_stops_the_run_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def take(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "episodes/states.parquet")

    monkeypatch.setattr(Receipts, "take", take)
    with pytest.raises(RunFolderError, match=r"No space is left for 'episodes/states\.parquet'"):
        run_on(toys(), tmp_path / "run", ThreadSites(1))
    assert "Traceback" not in capfd.readouterr().err


# -- real processes ------------------------------------------------------------------------------


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hocket", *words]


def start(*words: str, cwd: Path, log: str) -> subprocess.Popen[bytes]:
    with open(cwd / log, "wb") as file:
        return subprocess.Popen(command(*words), cwd=cwd, stdout=file, stderr=file)


EVAL = ("eval", "--env", "toy:count", "--policy", "random", "--video", "none", "--out", "run")
TOYS = ("--env.step-s", "0.02", "--env.length-min", "20", "--env.length-max", "40")


def count(folder: Path) -> int:
    try:
        with LedgerView.open(folder) as ledger:
            return len(ledger.episodes())
    except Exception:  # noqa: BLE001 - it is not there yet
        return 0


def sites_of(driver: subprocess.Popen[bytes]) -> list[int]:
    """The processes of sites, by the driver's children that are called `work`."""
    return [
        pid
        for pid in children(driver.pid)
        if b"\0work\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.wait(DEADLINE_S) == 0, log.read_text()


def assert_whole(folder: Path, episodes: int, here: Path) -> None:
    config = toys(episodes=episodes, env_config=SLOW_TOYS)
    run_here(config, here)
    assert_same(here, folder)
    with LedgerView.open(folder) as ledger:
        assert len(ledger.episodes()) == episodes
        assert all(episode.outcome is not Outcome.ERROR for episode in ledger.episodes())


@pytest.mark.slow
def test_a_killed_and_a_stopped_site_cost_what_they_were_running(tmp_path: Path) -> None:
    words = ("--machines", "local:3", "--lanes", "1", "--episodes", "60", "--retries", "0")
    driver = start(*EVAL, *TOYS, *words, "--site.lease", "3", cwd=tmp_path, log="log")
    wait_until(lambda: count(tmp_path / "run") > 3)
    stopped, killed, *_ = sites_of(driver)
    os.kill(stopped, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 4.0)
    os.kill(stopped, signal.SIGCONT)
    below = children(driver.pid)
    finish(driver, tmp_path / "log")
    wait_gone(below)
    lost = [error for *_, error in attempts(tmp_path / "run") if error]
    assert lost
    assert all("LostSite" in error for error in lost)
    assert_whole(tmp_path / "run", 60, tmp_path / "here")


@pytest.mark.slow
def test_a_killed_driver_leaves_no_local_site_and_its_run_is_resumed(tmp_path: Path) -> None:
    words = ("--machines", "local:2", "--lanes", "2", "--episodes", "40")
    driver = start(*EVAL, *TOYS, *words, cwd=tmp_path, log="log")
    wait_until(lambda: count(tmp_path / "run") > 3)
    below = children(driver.pid)
    driver.kill()
    driver.wait()
    wait_gone(below)
    assert count(tmp_path / "run") < 40
    again = start("resume", "run", "--machines", "local:2", cwd=tmp_path, log="log2")
    finish(again, tmp_path / "log2")
    assert_whole(tmp_path / "run", 40, tmp_path / "here")


@pytest.mark.slow
def test_sites_outlive_their_driver_and_deliver_to_the_next_one(tmp_path: Path) -> None:
    where = ("--machines", "listen:127.0.0.1:0", "--site.lease", "5")
    driver = start(
        *EVAL, *TOYS, *where, "--lanes", "2", "--episodes", "60", cwd=tmp_path, log="log"
    )
    wait_until(lambda: b"Sites join with" in (tmp_path / "log").read_bytes())
    line = (tmp_path / "log").read_text().partition("Sites join with: hocket ")[2].splitlines()[0]
    sites = [start(*line.split(), cwd=tmp_path, log=f"site{i}") for i in range(2)]
    try:
        wait_until(lambda: count(tmp_path / "run") > 3)
        driver.kill()
        driver.wait()
        assert count(tmp_path / "run") < 60
        again = start("resume", "run", *where, cwd=tmp_path, log="log2")
        # One site is told to leave, another comes: the run goes on.
        wait_until(lambda: count(tmp_path / "run") > 20)
        sites[0].terminate()
        sites.append(start(*line.split(), cwd=tmp_path, log="site2"))
        finish(again, tmp_path / "log2")
        for i, site in enumerate(sites):
            assert site.wait(DEADLINE_S) == 0, (tmp_path / f"site{i}").read_text()
    finally:
        for site in sites:
            site.kill()
            site.wait()
    assert_whole(tmp_path / "run", 60, tmp_path / "here")
    with LedgerView.open(tmp_path / "run") as ledger:
        assert not [failure for failure in ledger.failures() if "LostSite" not in failure.error]
        # What the sites ran when the driver died was delivered to the next one.
        assert sum(episode.attempt == 0 for episode in ledger.episodes()) > 40


def test_a_site_that_is_told_to_leave_gives_back_what_it_has(tmp_path: Path) -> None:
    launcher = ThreadSites(2)
    config = toys(episodes=12, env_config={"step_s": 0.003}, retries=0)
    with machines(launcher) as elsewhere:
        from hocket.core.events import EpisodesSealed, Event
        from hocket.runs.run import Run

        class LeaveOnce:
            def on(self, event: Event) -> None:
                if isinstance(event, EpisodesSealed):
                    launcher.sites[0].leave()

            def close(self) -> None: ...

        with Run.new(config, tmp_path / "run") as run:
            report = run.finish(elsewhere=elsewhere, readers=[LeaveOnce()])
    assert report.complete
    assert report.overall.errors == 0
