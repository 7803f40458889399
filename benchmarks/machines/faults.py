"""Runs that lose workers, sites, drivers, connections, containers and nodes at random, and are then
compared with runs that lost nothing.

    python benchmarks/machines/faults.py sites --faults 100 --tally tally.json

The schedule is drawn from a fresh seed and printed before its run; `--seed` draws the same again.
Every trial must have the outcome, the steps, the states and the films of an undisturbed run, every
episode must be there once, and no process, container or unfinished file may be left. The tally in
the file adds up what all runs so far have gone through; docs/design/faults.md has the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from hocket.core.data import Outcome  # noqa: E402
from hocket.records.ledger.view import LedgerView  # noqa: E402
from hocket.system.durable import TEMPORARY  # noqa: E402
from support.fault_proxy import FaultProxy  # noqa: E402
from support.processes import children, wait_gone  # noqa: E402
from support.sites import assert_same, run_here, toys  # noqa: E402

LEASE_S, WAIT_S = 5.0, 60
SMALL = {"object_store_memory": 80 << 20}
PER_RUN, PER_RUN_ON_RAY = 25, 7
TOY = {"step_s": 0.01, "length_min": 20, "length_max": 40, "image_size": 32}
WORDS = ("--env", "toy:count", "--policy", "random", "--keep-errors", "0", "--retries", "200")
CONFIG = {"env_config": TOY, "video": "first:4"}
SUMS = ("faults", "runs", "episodes", "lost attempts", "seconds")


def words_of_toys() -> list[str]:
    return [
        word
        for key, value in TOY.items()
        for word in (f"--env.{key.replace('_', '-')}", str(value))
    ]


class Rig:
    """One run, and what goes wrong with it."""

    kinds: tuple[Callable[..., None], ...] = ()

    def __init__(self, folder: Path, draw: random.Random, episodes: int) -> None:
        self.folder, self.draw, self.episodes = folder, draw, episodes
        self.processes: list[subprocess.Popen[bytes]] = []
        self.seen: set[int] = set()

    def eval(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin the run."""
        films = ("--video", "first:4", "--episodes", str(self.episodes), "--out", "run")
        return self.start("eval", *WORDS, *words_of_toys(), *films, *words)

    def start(
        self, *words: str, program: tuple[str, ...] = ("-m", "hocket")
    ) -> subprocess.Popen[bytes]:
        with open(self.folder / f"log{len(self.processes)}", "wb") as file:
            command = [sys.executable, *program, *words]
            process = subprocess.Popen(command, cwd=self.folder, stdout=file, stderr=file)
        self.processes.append(process)
        return process

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def ended(self) -> int:
        try:
            with LedgerView.open(self.folder / "run") as ledger:
                return len(ledger.episodes())
        except Exception:  # noqa: BLE001 - it is not there yet
            return 0

    def look(self) -> None:
        for process in self.processes:
            self.seen.update(children(process.pid))

    def settle(self) -> None:
        """End what the run does not end."""

    def told(self) -> str:
        logs = sorted(self.folder.glob("log*"))
        return "\n".join(
            f"-- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs
        )

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()


class Workers(Rig):
    """One machine, whose workers are killed and stopped."""

    def __init__(self, folder: Path, draw: random.Random, episodes: int) -> None:
        super().__init__(folder, draw, episodes)
        self._driver = self.eval("--lanes", "3", "--step-timeout", "3")

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        return self._driver

    def _worker(self) -> int | None:
        workers = workers_of(self._driver.pid)
        return self.draw.choice(workers) if workers else None

    def kill_a_worker(self) -> None:
        self._signal(signal.SIGKILL)

    def stop_a_worker(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if (pid := self._worker()) is None:
            raise Missed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill_the_run(self) -> None:
        self._driver.kill()
        self._driver.wait()
        self._driver = self.start("resume", "run")


def workers_of(pid: int) -> list[int]:
    """The workers below a process: children of what it has started, that have none."""
    own = set(children(pid))
    return [
        worker
        for zygote in own
        for worker in children(zygote)
        if worker in own and not children(worker)
    ]


class Missed(Exception):
    """There was nothing for a fault to befall."""


class Sites(Rig):
    """A driver that listens, and three sites."""

    def __init__(self, folder: Path, draw: random.Random, episodes: int) -> None:
        super().__init__(folder, draw, episodes)
        self.where = ("--machines", "listen:127.0.0.1:0", "--site.lease", str(LEASE_S))
        self.drivers = [self.eval("--lanes", "2", *self.where)]
        while b"Sites join with" not in (told := (folder / "log0").read_bytes()):
            assert self.driver.poll() is None, self.told()
            time.sleep(0.05)
        line = told.decode().partition("Sites join with: hocket ")[2].splitlines()[0].split()
        self.port, self.key = int(line[2].rpartition(":")[2]), line[4]
        self.sites: list[tuple[subprocess.Popen[bytes], FaultProxy]] = []
        self.proxies: list[FaultProxy] = []
        for _ in range(3):
            self._add()

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        return self.drivers[-1]

    def _add(self) -> None:
        proxy = FaultProxy(self.port)
        self.proxies.append(proxy)
        words = ("work", "--connect", f"wss://127.0.0.1:{proxy.port}", "--key-file", self.key)
        words += ("--wait", str(WAIT_S))
        self.sites.append((self.start(*words), proxy))

    def _take(self) -> tuple[subprocess.Popen[bytes], FaultProxy]:
        return self.sites.pop(self.draw.randrange(len(self.sites)))

    def kill_a_site(self) -> None:
        process, _ = self._take()
        process.kill()
        process.wait()
        self._add()

    def kill_a_machine(self) -> None:
        """Everything there ends at once, and nobody closes its connection."""
        process, proxy = self._take()
        proxy.is_stalled.set()
        for pid in (process.pid, *children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self._add()

    def stop_a_site_past_its_lease(self) -> None:
        process, _ = self.draw.choice(self.sites)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.4 * LEASE_S)
        os.kill(process.pid, signal.SIGCONT)

    def tell_a_site_to_leave(self) -> None:
        process, _ = self._take()
        process.terminate()
        self._add()

    def kill_a_worker_of_a_site(self) -> None:
        process, _ = self.draw.choice(self.sites)
        if not (workers := workers_of(process.pid)):
            raise Missed
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.draw.choice(workers), signal.SIGKILL)

    def cut_a_connection(self) -> None:
        _, proxy = self.draw.choice(self.sites)
        proxy.drop_all()

    def cut_all_connections(self) -> None:
        for _, proxy in self.sites:
            proxy.drop_all()

    def cut_soon_and_often(self) -> None:
        """Two seconds in which no connection of a site lives longer than some tens of kB."""
        _, proxy = self.draw.choice(self.sites)
        proxy.lives = lambda: self.draw.randint(20_000, 200_000)
        proxy.drop_all()
        time.sleep(2.0)
        proxy.lives = None
        proxy.drop_all()

    def kill_the_driver(self) -> None:
        self.driver.kill()
        self.driver.wait()
        self.drivers.append(self.start("resume", "run", *self.where))

    def stop_the_driver(self) -> None:
        os.kill(self.driver.pid, signal.SIGSTOP)
        time.sleep(0.6 * LEASE_S)
        os.kill(self.driver.pid, signal.SIGCONT)

    def settle(self) -> None:
        for process, _ in self.sites:
            code = process.wait(4 * WAIT_S)
            told = (self.folder / f"log{self.processes.index(process)}").read_text()
            # One that was started when the run was over has found no driver, and says so.
            is_late = "No driver answered" in told and "loading" not in told
            assert code == (2 if is_late else 0), self.told()

    def close(self) -> None:
        super().close()
        for proxy in self.proxies:
            proxy.__exit__()


class Containers(Rig):
    """Workers in containers of Podman, which are killed and stopped."""

    def __init__(self, folder: Path, draw: random.Random, episodes: int) -> None:
        from support.podman import IMAGE, mounts

        super().__init__(folder, draw, episodes)
        there = ("--runtime", f"podman:{IMAGE}", "--runtime.python", sys.executable)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        extra = [f"{path}:{path}:ro" for path in (TESTS.parent, *packages)]
        there += ("--runtime.mounts", *mounts(*extra))
        self._driver = self.eval("--lanes", "3", "--step-timeout", "6", *there)

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        return self._driver

    def _container(self) -> str:
        found = containers()
        if not found:
            raise Missed
        return self.draw.choice(found)

    def kill_a_container(self) -> None:
        podman("kill", self._container())

    def remove_a_container(self) -> None:
        podman("rm", "--force", "--time", "0", self._container())

    def pause_a_container(self) -> None:
        """Its processes stop until it is taken to hang."""
        name = self._container()
        told = podman("inspect", "--format", "{{.State.Pid}}", name)
        if not told.strip().isdigit() or int(told) == 0:
            raise Missed
        for pid in (int(told), *children(int(told))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def kill_the_run(self) -> None:
        self._driver.kill()
        self._driver.wait()
        self._driver = self.start("resume", "run")

    def settle(self) -> None:
        deadline = time.monotonic() + 30
        while containers() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not containers(), "Containers were left."


class Nodes(Rig):
    """A Ray cluster of three nodes, of which one after the other is killed, and replaced."""

    def __init__(self, folder: Path, draw: random.Random, episodes: int) -> None:
        from ray.cluster_utils import Cluster

        super().__init__(folder, draw, episodes)
        os.environ.update(RAY_AUTH_MODE="disabled", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
        head = {"num_cpus": 0, "include_dashboard": False, **SMALL}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._cluster.add_node(num_cpus=1, **SMALL) for _ in range(3)]
        os.environ["RAY_ADDRESS"] = self._cluster.address
        where = ("--machines", "ray", "--sites", "3", "--site.lease", str(LEASE_S))
        self._driver = self.eval("--lanes", "2", *where)

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        return self._driver

    def kill_a_node(self) -> None:
        node = self._nodes.pop(self.draw.randrange(3))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(num_cpus=1, **SMALL))

    def close(self) -> None:
        super().close()
        self._cluster.shutdown()


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False)
    return done.stdout


def containers() -> list[str]:
    return podman("ps", "--all", "--format", "{{.Names}}").split()


Workers.kinds = (Workers.kill_a_worker, Workers.stop_a_worker, Workers.kill_the_run)
Sites.kinds = (
    *(Sites.kill_a_site, Sites.kill_a_machine, Sites.stop_a_site_past_its_lease),
    *(Sites.tell_a_site_to_leave, Sites.kill_a_worker_of_a_site, Sites.cut_a_connection),
    *(Sites.cut_all_connections, Sites.cut_soon_and_often, Sites.kill_the_driver),
    Sites.stop_the_driver,
)
Nodes.kinds = (Nodes.kill_a_node,)
Containers.kinds = (
    *(Containers.kill_a_container, Containers.remove_a_container, Containers.pause_a_container),
    Containers.kill_the_run,
)
RIGS: dict[str, type[Rig]] = {
    "workers": Workers,
    "sites": Sites,
    "containers": Containers,
    "ray": Nodes,
}
PACE = {"workers": (0.2, 0.8), "sites": (0.3, 2.0), "containers": (0.5, 2.5), "ray": (3.0, 10.0)}
WEIGHTS = {"kill_the_run": 0.15, "stop_a_worker": 0.25, "stop_a_site_past_its_lease": 0.4}


def compared(folder: Path, episodes: int) -> int:
    """Fail unless a run has what an undisturbed one has, once; gives the attempts that it lost."""
    # What is only slow changes no result.
    run_here(
        toys(episodes=episodes, **{**CONFIG, "env_config": {**TOY, "step_s": 0.0}}), folder / "here"
    )
    assert_same(folder / "here", folder / "run")
    with LedgerView.open(folder / "run") as ledger:
        found = ledger.episodes()
        lost = len(ledger.failures())
    assert len({e.trial for e in found}) == len(found) == episodes
    assert not [e for e in found if e.outcome is Outcome.ERROR]
    left = [path for path in (folder / "run").rglob("*") if path.name.endswith(TEMPORARY)]
    assert not left, left
    return lost


def run(kind: str, folder: Path, draw: random.Random, faults: int, episodes: int) -> Counter[str]:
    """One run with at most so many faults; what it went through."""
    rig_of = RIGS[kind]
    weights = [WEIGHTS.get(fault.__name__, 1.0) for fault in rig_of.kinds]
    schedule = [
        (round(draw.uniform(*PACE[kind]), 2), draw.choices(rig_of.kinds, weights)[0])
        for _ in range(faults)
    ]
    sys.stdout.write("  " + ", ".join(f"{s:g} s {fault.__name__}" for s, fault in schedule) + "\n")
    sys.stdout.flush()
    began, tally = time.monotonic(), Counter[str]()
    rig = rig_of(folder, draw, episodes)
    try:
        while rig.ended() < 3:
            assert rig.driver.poll() is None, rig.told()
            time.sleep(0.1)
        for pause, fault in schedule:
            time.sleep(pause)
            rig.look()
            if rig.driver.poll() is not None or rig.ended() >= 0.9 * episodes:
                break
            with contextlib.suppress(Missed):
                fault(rig)
                tally[fault.__name__] += 1
        rig.look()
        assert rig.driver.wait(600) == 0, rig.told()
        rig.settle()
        wait_gone(sorted(rig.seen - {process.pid for process in rig.processes}))
    except BaseException:
        sys.stdout.write(rig.told() + "\n")
        raise
    finally:
        rig.close()
    tally["faults"] = sum(tally.values())
    tally["lost attempts"] = compared(folder, episodes)
    tally["runs"], tally["episodes"] = 1, episodes
    tally["seconds"] = round(time.monotonic() - began)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kind", choices=RIGS)
    parser.add_argument("--faults", type=int, default=PER_RUN)
    parser.add_argument("--per-run", type=int, help="at most so many in one run")
    parser.add_argument("--episodes", type=int, default=400, help="of each run")
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins after these")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--tally", type=Path, default=Path("faults.json"))
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    draw, left = random.Random(seed), arguments.faults
    sys.stdout.write(f"{arguments.kind}, seed {seed}:\n")
    most = arguments.per_run or (PER_RUN_ON_RAY if arguments.kind == "ray" else PER_RUN)
    end = time.monotonic() + 60 * arguments.minutes
    with contextlib.ExitStack() as stack:
        if arguments.kind == "containers":
            from support.podman import image_here

            stack.enter_context(
                image_here(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            )
        while left > 0 and time.monotonic() < end:
            with tempfile.TemporaryDirectory() as folder:
                drawn = (draw, min(left, most), arguments.episodes)
                found = run(arguments.kind, Path(folder), *drawn)
            left -= max(1, found["faults"])
            known = json.loads(arguments.tally.read_text()) if arguments.tally.exists() else {}
            sums = Counter(known.get(arguments.kind, {})) + found
            arguments.tally.write_text(json.dumps({**known, arguments.kind: sums}, indent=1))
            sys.stdout.write(f"  {dict(found)}: all the same\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
