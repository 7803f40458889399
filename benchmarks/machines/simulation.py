"""The driver's real code with many simulated sites: how well it spreads trials, what the end of a
run costs, and how much of a core it needs.

    python benchmarks/machines/simulation.py --sites 1 10 100 1000 --lanes 64 --episodes 50
    python benchmarks/machines/simulation.py --sites 20 --lanes 64 --episodes 50 --ledger both

Time is simulated: an event at a time, from a heap. Tasks differ in length (log-normal, sigma 0.8, a
mean of 20 s) and so do episodes of a task (sigma 0.5, cut at twice the mean, as by a limit of
steps). Every twentieth site is half as fast as the others. With `--faults` one site in a hundred
dies in the middle of the run, as many join late, and the lease of a dead one ends 30 s later.
Messages take 5 ms each way.

`speed-up` is the work of the episodes that counted, in lane seconds, over what all lanes could have
done from their joining to the end of the run (or to their death). `tail` is the time from the last
beginning of an episode to the end of the run, over the longest episode. `driver` is the CPU time of
the driver's calls and of all other threads for each episode; the simulation's own is not in it.
What the driver posts is packed, and what it hears unpacked; sockets are not in it. With `--ledger`
the ledger's commits, the rows of ten chunks and the receipt of files are: with `steps` one of 100
steps (12 numbers of state, 4 of action: 16 kB), with `states` one of 20 kB, `both` or `none` of
them; they become rows of tables. Episodes that are recorded have steps; they have states too where
the env can be set back to them. `video` is a file of 20 kB that stays one, and `bare` what the
kernel alone takes for it, in the same place (TMPDIR says where): two folders made, a file opened,
written and closed, in a loop of this process.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import math
import os
import random
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.cli import COLLECT_AFTER
from hocket.core.contracts.recorder import StepRecord
from hocket.core.data import Outcome, Ref, Trial
from hocket.engine.garbage import gc_frozen
from hocket.machines import protocol
from hocket.machines.deliveries import packed_rows
from hocket.machines.driver import Driver
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.server import LATER_S, TURN_S
from hocket.records.chunks import ChunkRow
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import LedgerConfig
from hocket.records.step_rows import StateRows, StepRows
from hocket.runs.config import EvalConfig
from hocket.runs.elsewhere import Keeping, Work
from hocket.runs.sites import SiteConfig
from hocket.workers.sinks.steps import StepsConfig, StepsTrack

DELAY_S = 0.005
TASKS = 40
LIMIT = 2.0
DRIVERS = ("tick", "turn", "deliver")
"""Methods of the simulation that are the driver's work."""
FILE = random.Random(0).randbytes(20_000)
SINKS = ("steps", "states", "video")
UNCOMMITTED = 8_000
"""Episodes that may wait for the disk: twice as many as in a run, less than the driver's memory is
for."""
ROWS, SOURCES = packed_rows(
    [
        ChunkRow(i, 0, 1.0 + i, 1.1, 1.2, 1.3, 1.9, 7 + i, 64, 1, "policy", 10, 0.5, 0.1)
        for i in range(10)
    ]
)
IDENTITY = {"code": {}, "hardware": {}}


def some_steps(folder: Path, steps: int, count: int = 64) -> list[bytes]:
    """Files as sinks leave them, of steps whose states walk at random."""
    draw, found = np.random.default_rng(0), []
    for _ in range(count):
        track = StepsTrack(StepsConfig(), folder / "drawn", "reach the goal")
        states = draw.normal(size=(steps, 12)).cumsum(axis=0) / 100
        for step, state in enumerate(states):
            record = StepRecord(
                step=step,
                action=draw.normal(size=4) if step else None,
                reward=0.1,
                terminated=False,
                truncated=False,
                success=None,
                chunk=(step - 1) // 10,
                age=(step - 1) % 10,
                observation={"observation/state": state},
                state=None,
            )
            track.step(record)
        (path,) = track.seal(Outcome.SUCCESS)
        found.append(Path(path).read_bytes())
    return found


def pieces_of(kind: str, steps: int, folder: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """What the files of episodes may hold, by their names, each with its digest."""
    files = {}
    if kind in ("steps", "both"):
        files["steps.rows"] = some_steps(folder, steps)
    if kind in ("states", "both"):
        files["states.rows"] = [FILE]
    if kind == "video":
        files["image.mp4"] = [FILE]
    return {
        name: [(data, protocol.HASHER(data).digest()) for data in some]
        for name, some in files.items()
    }


@dataclass(slots=True)
class SimulatedSite:
    name: str
    lanes: int
    speed: float
    joined: float
    waiting: deque[LeaseId] = field(default_factory=deque)
    running: set[LeaseId] = field(default_factory=set)
    died: float | None = None


class Simulation:
    def __init__(self, folder: Path, arguments: argparse.Namespace, sites: int) -> None:
        draw = self.draw = random.Random(arguments.seed)
        self.arguments = arguments
        self.now = 0.0
        self.heap: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.order = itertools.count()
        self.busy = 0.0
        """CPU seconds of the driver and of the ledger's thread."""
        self.waiting = 0.0
        """CPU seconds of looking whether the disk has come after."""
        self.turn_at = math.inf
        means = [draw.lognormvariate(0.0, 0.8) for _ in range(TASKS)]
        scale = 20.0 / (sum(means) / TASKS)
        count = sites * arguments.lanes * arguments.episodes
        self.trials = [Trial("sim", f"t{i % TASKS}", i // TASKS) for i in range(count)]
        self.lengths = [
            means[i % TASKS] * scale * min(LIMIT, draw.lognormvariate(-0.125, 0.5))
            for i in range(count)
        ]
        self.ledger: Ledger | None = None
        if arguments.ledger:
            config = LedgerConfig(max_pending=2 * UNCOMMITTED)
            self.ledger = Ledger.create(folder, self.trials, {}, config=config)
            self.ledger.attach(StepRows(folder))
            self.ledger.attach(StateRows(folder))
            self.ledger.sync_files()
        self.files = pieces_of(arguments.ledger, arguments.steps, folder)
        self.keeping = Keeping() if self.ledger is None else Keeping.of(self.ledger)
        work = Work(
            config=EvalConfig(env=("toy:count",), policy="random"),
            folder=RunFolder.at(folder),
            keeping=self.keeping,
            planned=self.trials,
            remaining=self.trials,
            done=[],
            readers=() if self.ledger is None else (self.ledger,),
            sinks=[Ref(name=name) for name in SINKS] if arguments.ledger else (),
            record=lambda *_: {},
            begin=lambda _: None,
            learn=lambda *_: None,
        )
        self.driver = Driver(work, SiteConfig(), self.post)
        self.driver.start(0.0)
        self.sites: dict[str, SimulatedSite] = {}
        self.last_begun = 0.0
        self.longest = 0.0
        self.counted = 0.0
        self.episodes = 0
        expected = sum(self.lengths) / (sites * arguments.lanes)
        for i in range(sites):
            self.at(draw.uniform(0, 5), self.join, f"s{i}", 0.5 if i % 20 == 19 else 1.0)
        if arguments.faults:
            for i in range(max(1, sites // 100)):
                self.at(draw.uniform(0.2, 0.6) * expected, self.die, f"s{i * 7 % sites}")
                self.at(draw.uniform(0.3, 0.8) * expected, self.join, f"late{i}", 1.0)

    def at(self, delay: float, call: Any, *arguments: Any) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), call, arguments))

    def run(self) -> None:
        with gc_frozen(len(self.trials)):
            self._run()

    def _run(self) -> None:
        others, mine = time.process_time() - time.thread_time(), 0.0
        self.at(0.0, self.tick)
        while not self.driver.is_done:
            self.now, _, call, arguments = heapq.heappop(self.heap)
            if call.__name__ in DRIVERS:
                began = time.thread_time()
                call(*arguments)
                mine += time.thread_time() - began
            else:
                call(*arguments)
        began = time.thread_time()
        self.driver.finish(self.now)
        if self.ledger is not None:
            self.ledger.close()
        mine += time.thread_time() - began
        self.busy = mine - self.waiting + time.process_time() - time.thread_time() - others

    # -- the driver's side ---------------------------------------------------------------------

    def await_disk(self) -> None:
        """Let time stand still while the disk is behind: it passes faster here than in a run."""
        began = time.thread_time()
        while self.episodes - self.keeping.committed() > UNCOMMITTED:
            time.sleep(0.001)
        self.waiting += time.thread_time() - began

    def tick(self) -> None:
        self.await_disk()
        self.driver.tick(self.now)
        self.at(0.1, self.tick)

    def post(self, site: str, message: protocol.Message) -> None:
        self.at(DELAY_S, self.hear, site, [protocol.pack(message)])

    def say(self, site: SimulatedSite, *messages: protocol.Message) -> None:
        self.at(DELAY_S, self.deliver, site.name, list(map(protocol.pack, messages)))

    def deliver(self, name: str, data: list[bytes]) -> None:
        for message in map(protocol.unpack, data):
            self.driver.hear(name, message, self.now)
        due = self.now + (TURN_S if self.driver.is_awaited(name) else LATER_S)
        if due < self.turn_at:
            self.turn_at = due
            self.at(due - self.now, self.turn, due)

    def turn(self, due: float) -> None:
        if due == self.turn_at:
            self.turn_at = math.inf
            self.await_disk()
            self.driver.turn(self.now)

    # -- the sites' side -----------------------------------------------------------------------

    def join(self, name: str, speed: float) -> None:
        site = self.sites[name] = SimulatedSite(name, self.arguments.lanes, speed, self.now)
        version = hocket.__version__
        self.driver.open(protocol.SiteHello(protocol.PROTOCOL, version, name, name))
        self.say(
            site,
            protocol.Joined(
                lanes=site.lanes,
                cores=1,
                level="bitwise",
                identity=IDENTITY,
                depends_on={},
                holds=[],
            ),
        )
        self.beat(site)

    def die(self, name: str) -> None:
        if name in self.sites:
            self.sites[name].died = self.now

    def beat(self, site: SimulatedSite) -> None:
        if site.died is None:
            self.say(site, protocol.Beat(self.now, [0, 0, 0, 0, 0.0, 0.0], (0, 0), "running"))
            self.at(2.0, self.beat, site)

    def hear(self, name: str, data: list[bytes]) -> None:
        site = self.sites[name]
        if site.died is not None:
            return
        (message,) = map(protocol.unpack, data)
        if isinstance(message, protocol.Leased):
            site.waiting.extend(LeaseId(*lease[:2]) for lease in message.leases)
            self.begin(site)
        elif isinstance(message, protocol.AskedBack):
            for one in (LeaseId(*lease) for lease in message.leases):
                if one in site.waiting:
                    site.waiting.remove(one)
                    self.say(site, protocol.Returned(*one, "", spends=False, files=[]))

    def begin(self, site: SimulatedSite) -> None:
        began = []
        while site.waiting and len(site.running) < site.lanes:
            one = site.waiting.popleft()
            site.running.add(one)
            began.append(one)
            self.last_begun = self.now
            self.at(self.lengths[one.trial] / site.speed, self.end, site, one)
        if began:
            self.say(site, protocol.Began(began))

    def end(self, site: SimulatedSite, one: LeaseId) -> None:
        if site.died is not None:
            return
        site.running.discard(one)
        length = self.lengths[one.trial]
        self.longest = max(self.longest, length / site.speed)
        self.counted += length
        self.episodes += 1
        sealed = protocol.SealedEpisode(
            *one,
            outcome="success",
            steps=self.arguments.steps,
            total_reward=1.0,
            terminated=True,
            truncated=False,
            chunks=10,
            seconds=length / site.speed,
            files=list(self.files),
            rows=ROWS if self.arguments.ledger else b"",
            sources=SOURCES if self.arguments.ledger else [],
        )
        pieces = []
        for name, some in self.files.items():
            data, digest = some[one.trial % len(some)]
            pieces.append(protocol.FilePiece(*one, name, 0, data, digest))
        self.say(site, *pieces, sealed)
        self.begin(site)

    def told(self) -> str:
        could = sum(
            site.lanes * site.speed * ((site.died or self.now) - site.joined)
            for site in self.sites.values()
        )
        tail = (self.now - self.last_begun) / self.longest
        return (
            f"{self.episodes:10,} {self.now:8.0f} s {self.counted / could:9.3f} {tail:7.2f} "
            f"{1e6 * self.busy / max(1, self.episodes):9.0f} us"
        )


def bare_files(folder: Path, count: int = 2000) -> float:
    """CPU seconds of the kernel, and of a loop, for the folders and the file of one episode."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    os.mkdir(folder)
    began = time.thread_time()
    for i in range(count):
        trial = f"{folder}/sim-t{i % TASKS}-{i}"
        os.mkdir(trial)
        os.mkdir(f"{trial}/0")
        file = os.open(f"{trial}/0/image.mp4", flags, 0o666)
        os.write(file, FILE)
        os.close(file)
    return (time.thread_time() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=50, help="for each lane")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ledger",
        choices=("none", "steps", "states", "both", "video"),
        help="with commits, and these files",
    )
    parser.add_argument("--steps", type=int, default=100, help="of each episode")
    parser.add_argument("--faults", action="store_true")
    arguments = parser.parse_args()
    gc.set_threshold(*COLLECT_AFTER)
    last = "      bare" if arguments.ledger else ""
    print(f"     sites   episodes     takes  speed-up    tail    driver{last}")
    for sites in arguments.sites:
        with tempfile.TemporaryDirectory() as folder:
            simulation = Simulation(Path(folder) / "run", arguments, sites)
            simulation.run()
            told = simulation.told()
            if arguments.ledger:
                told += f" {1e6 * bare_files(Path(folder) / 'bare'):6.0f} us"
            print(f"{sites:10,} {told}", flush=True)


if __name__ == "__main__":
    main()
