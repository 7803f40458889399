"""Runs on sites while machines, connections and drivers fail at random: nothing is lost, nothing
counts twice, no process is left, and a fault costs at most what was running there.

The faults come from a fresh seed, which is printed; `HOCKET_FAULTS` says how many there are, and
`HOCKET_FAULT_SEED` draws the same again."""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hocket.core.data import Outcome
from hocket.machines.leasing.leases import AHEAD
from hocket.records.ledger.view import LedgerView
from support.fault_proxy import FaultProxy
from support.processes import DEADLINE_S, children, wait_gone, wait_until
from support.sites import assert_same, run_here, toys

FAULTS = int(os.environ.get("HOCKET_FAULTS", "7"))
PER_RUN = 5
EPISODES = 160
LANES = 2
LEASE_S = 6.0
SLOW_TOYS = {"step_s": 0.02, "length_min": 20, "length_max": 40}
WORDS = ("--env", "toy:count", "--policy", "random", "--video", "none", "--lanes", str(LANES))
TOYS = ("--env.step-s", "0.02", "--env.length-min", "20", "--env.length-max", "40")
OTHER_VERSION = """
import sys, hocket
hocket.__version__ = "0.0.0"
from hocket.cli import main
sys.exit(main(sys.argv[1:]))
"""
SMALL_PIECES = """
import sys
from hocket.cli import main
from hocket.machines import protocol
protocol.PART = 500
sys.exit(main(sys.argv[1:]))
"""
"""A site that sends its files in many small pieces."""


@dataclass(eq=False)
class Machine:
    """A site, and the network between it and the driver."""

    process: subprocess.Popen[bytes]
    proxy: FaultProxy

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.proxy.__exit__()


class Faulty:
    """A run with two sites, and what goes wrong with it."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.losses = 0
        """Faults that cost a site what it was running."""
        self.drivers: list[subprocess.Popen[bytes]] = []
        self.sites: list[Machine] = []
        self.gone: list[Machine] = []
        self.seen: set[int] = set()
        """Every process that was seen below those that were started here."""
        self.refused: list[subprocess.Popen[bytes]] = []
        self._logs = 0
        where = ("--machines", "listen:127.0.0.1:0", "--site.lease", str(LEASE_S))
        words = ("eval", *WORDS, *TOYS, "--episodes", str(EPISODES), "--retries", "0")
        self.drivers.append(self.start(*words, "--out", "run", *where))
        log = folder / "log1"
        wait_until(lambda: b"Sites join with" in log.read_bytes(), DEADLINE_S)
        told = log.read_text().partition("wss://")[2].split()
        self.key, self.port = told[2], int(told[0].rpartition(":")[2])
        for _ in range(2):
            self.add_site()

    def start(self, *words: str, program: tuple[str, ...] = ("-m", "hocket")) -> subprocess.Popen:
        self._logs += 1
        with open(self.folder / f"log{self._logs}", "wb") as file:
            command = [sys.executable, *program, *words]
            return subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)

    def _join(self, port: int, *program: str) -> subprocess.Popen:
        url = f"wss://127.0.0.1:{port}"
        program = program or ("-m", "hocket")
        return self.start("work", "--connect", url, "--key-file", self.key, program=program)

    def add_site(self) -> None:
        proxy = FaultProxy(self.port)
        self.sites.append(Machine(self._join(proxy.port, "-c", SMALL_PIECES), proxy))

    def ended(self) -> int:
        """Episodes that count so far."""
        try:
            with LedgerView.open(self.folder / "run") as ledger:
                return len(ledger.episodes())
        except Exception:  # noqa: BLE001 - it is not there yet
            return 0

    def look(self) -> None:
        for process in (*self.drivers, *(site.process for site in self.sites)):
            self.seen.update([process.pid, *children(process.pid)])

    @property
    def may_lose(self) -> int:
        """Attempts that the faults so far may have cost. Of a driver that was killed nobody knows
        whether attempts that waited at a site had begun."""
        waited = math.ceil(LANES * AHEAD) if len(self.drivers) > 1 else 0
        return self.losses * (LANES + waited)

    # -- faults --------------------------------------------------------------------------------

    def kill_a_site(self) -> None:
        victim = self.sites.pop(self.draw.randrange(len(self.sites)))
        victim.process.kill()
        victim.process.wait()
        self._replace(victim)

    def kill_a_node(self) -> None:
        """Everything there ends at once, and nobody closes its connection."""
        victim = self.sites.pop(self.draw.randrange(len(self.sites)))
        victim.proxy.is_stalled.set()
        for pid in (victim.process.pid, *children(victim.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        victim.process.wait()
        self._replace(victim)

    def _replace(self, victim: Machine) -> None:
        self.gone.append(victim)
        self.losses += 1
        self.add_site()

    def stop_a_site_past_its_lease(self) -> None:
        victim = self.draw.choice(self.sites).process
        os.kill(victim.pid, signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.5 * LEASE_S, DEADLINE_S)
        os.kill(victim.pid, signal.SIGCONT)
        self.losses += 1

    def cut_all_connections(self) -> None:
        for site in self.sites:
            site.proxy.drop_all()

    def cut_a_connection_in_the_middle_of_files(self) -> None:
        victim = self.draw.choice(self.sites)
        proxy, cuts = victim.proxy, victim.proxy.cuts
        proxy.lives = lambda: self.draw.randint(4_000, 40_000)
        proxy.drop_all()
        wait_until(lambda: proxy.cuts >= cuts + 3 or self.drivers[-1].poll() is not None)
        proxy.lives = None
        proxy.drop_all()

    def kill_the_driver(self) -> None:
        self.drivers[-1].kill()
        self.drivers[-1].wait()
        where = ("--machines", "listen:127.0.0.1:0", "--site.lease", str(LEASE_S))
        self.drivers.append(self.start("resume", "run", *where))

    def bring_a_site_of_another_version(self) -> None:
        self.refused.append(self._join(self.port, "-c", OTHER_VERSION))

    def finish(self) -> None:
        driver = self.drivers[-1]
        assert driver.wait(3 * DEADLINE_S) == 0, self.account()
        for process in (*(site.process for site in self.sites), *self.refused):
            process.wait(DEADLINE_S)
        assert all(site.process.returncode == 0 for site in self.sites), self.account()
        assert all(process.returncode == 2 for process in self.refused), self.account()

    def account(self) -> str:
        logs = sorted(self.folder.glob("log*"))
        return "\n".join(f"-- {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def close(self) -> None:
        for process in (*self.drivers, *self.refused):
            process.kill()
            process.wait()
        for machine in (*self.sites, *self.gone):
            machine.close()


Fault = Callable[[Faulty], None]
KINDS: tuple[Fault, ...] = (
    Faulty.kill_a_site,
    Faulty.kill_a_node,
    Faulty.stop_a_site_past_its_lease,
    Faulty.cut_all_connections,
    Faulty.cut_a_connection_in_the_middle_of_files,
    Faulty.kill_the_driver,
    Faulty.bring_a_site_of_another_version,
)


def run_with_faults(folder: Path, draw: random.Random, faults: Sequence[Fault]) -> list[str]:
    """One run with these faults; returns what they were."""
    folder.mkdir()
    faulty = Faulty(folder, draw)
    told: list[str] = []
    try:
        for number, fault in enumerate(faults):
            wanted = (number + 1) * EPISODES // (len(faults) + 2)
            wait_until(lambda wanted=wanted: faulty.ended() >= wanted, DEADLINE_S)
            faulty.look()
            told.append(fault.__name__)
            fault(faulty)
        faulty.look()
        faulty.finish()
        wait_gone(sorted(faulty.seen))
    except BaseException:
        sys.stdout.write(f"  {', '.join(told)}\n{faulty.account()}\n")
        raise
    finally:
        faulty.close()
    config = toys(episodes=EPISODES, env_config=SLOW_TOYS)
    run_here(config, folder / "here")
    assert_same(folder / "here", folder / "run")
    with LedgerView.open(folder / "run") as ledger:
        episodes, lost = ledger.episodes(), ledger.failures()
    assert len(episodes) == len({episode.trial for episode in episodes}) == EPISODES
    assert all(episode.outcome is not Outcome.ERROR for episode in episodes)
    assert all("LostSite" in failure.error for failure in lost), lost
    assert len(lost) <= faulty.may_lose, (told, [failure.error for failure in lost])
    return told


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_faults_lose_nothing_and_repeat_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("HOCKET_FAULT_SEED", secrets.randbits(32)))
    draw = random.Random(seed)
    # Each kind once before any comes twice, in an order by chance.
    drawn: list[Fault] = []
    while len(drawn) < FAULTS:
        drawn += draw.sample(KINDS, k=len(KINDS))
    drawn = drawn[:FAULTS]
    counts: Counter[str] = Counter()
    with capsys.disabled():
        sys.stdout.write(f"\nfaults of seed {seed}:\n")
        for run, first in enumerate(range(0, FAULTS, PER_RUN)):
            faults = drawn[first : first + PER_RUN]
            told = run_with_faults(tmp_path / str(run), draw, faults)
            counts.update(told)
            sys.stdout.write(f"  run {run}: {', '.join(told)}\n")
            sys.stdout.flush()
        sys.stdout.write(f"  {dict(counts)}\n")
