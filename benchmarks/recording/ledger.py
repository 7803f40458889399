"""What keeping everything costs: episodes committed per second, memory, opening, and each step.

    python benchmarks/recording/ledger.py [--episodes 100000] [--json]

Commits: an engine's events for 64 lanes, as fast as the ledger takes them, every attempt number
committed before its dispatch. Memory is the process's resident size after each tenth.
Opening: the ledger is opened, checked and read, and a Report is built from its episodes.
Steps: CPU seconds, of all threads, that the sink, the events and the segments take for an
episode's 150 steps in chunks of 16 (4 actions, 39 state numbers, 80 numbers of simulator state),
as a share of a 1 ms env step; medians over interleaved repeats, sealing on disk included.
Exit code 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hocket.core.contracts.recorder import AttemptStart, StepRecord
from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesSealed,
    RunEnded,
)
from hocket.core.specs import TaskInfo
from hocket.records.chunks import ChunkRows, load_chunks
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import StepRows, load_steps
from hocket.results.exactness import Claim
from hocket.results.report import Report
from hocket.results.throughput import Throughput
from hocket.workers.sinks.states import StatesSink
from hocket.workers.sinks.steps import StepsSink

LANES = 64
STEPS = 150
CHUNK = 16
REPEATS = 7
GROUP = 40
"""Episodes of one repeat when steps are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What this benchmark says."""

    episodes: int
    episodes_per_s: float
    cpu_us_per_episode: float
    memory_mib: list[float]
    """After each tenth of the episodes."""
    open_s: float
    report_s: float
    numbers_us_per_step: float
    states_us_per_step: float
    """Numbers and simulator states."""
    share_of_1ms_step: float
    """Of numbers and states together; the cost of `get_state` itself is the env's."""

    @property
    def growth_mib(self) -> float:
        return self.memory_mib[-1] - self.memory_mib[0]

    @property
    def are_met(self) -> bool:
        """At least 2,000 episodes/s in flat memory, a report in 10 s, a step at 5 % of 1 ms."""
        return (
            self.episodes_per_s >= 2000
            and self.growth_mib < 8
            and self.report_s < 10
            and self.share_of_1ms_step <= 0.05
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        commits = measure_commits(Path(place) / "commits", options.episodes)
        opening = measure_opening(Path(place) / "commits")
        steps = measure_steps(Path(place))
    figures = Figures(episodes=options.episodes, **commits, **opening, **steps)  # type: ignore[arg-type]
    if options.json:
        print(json.dumps(dataclasses.asdict(figures)))
    else:
        show(figures)
    sys.exit(0 if figures.are_met else 1)


def show(figures: Figures) -> None:
    print(f"commits   {figures.episodes_per_s:10,.0f} episodes/s      (at least 2,000)")
    print(f"          {figures.cpu_us_per_episode:10.1f} us of CPU each")
    print(f"memory    {figures.memory_mib[-1]:10.1f} MiB, {figures.growth_mib:+.1f} since a tenth")
    print(f"open      {figures.open_s:10.2f} s for {figures.episodes:,} episodes")
    print(f"report    {figures.report_s:10.2f} s with opening      (under 10)")
    print(f"numbers   {figures.numbers_us_per_step:10.1f} us of CPU a step")
    print(f"states    {figures.states_us_per_step:10.1f} us of CPU a step, numbers included")
    print(f"          {figures.share_of_1ms_step:10.1%} of a 1 ms step      (at most 5 %)")


def plan(count: int) -> list[Trial]:
    return [Trial(suite="toy", task=f"task{i % 10}", seed=i // 10) for i in range(count)]


def measure_commits(root: Path, count: int) -> dict[str, object]:
    trials = plan(count)
    memory: list[float] = []
    with Ledger.create(root, trials, {}) as ledger:
        began, cpu = time.perf_counter(), time.process_time()
        for first in range(0, count, LANES):
            if first * 10 // count > len(memory):
                memory.append(resident_mib())
            some = trials[first : first + LANES]
            lanes, attempts = range(len(some)), [0] * len(some)
            ledger.on(AttemptsBegan(time=0.0, lanes=lanes, trials=some, attempts=attempts))
            while ledger.behind():
                time.sleep(0.001)
            episodes = [
                Episode(
                    trial=trial,
                    attempt=0,
                    outcome=Outcome.SUCCESS,
                    steps=STEPS,
                    total_reward=1.0,
                    terminated=True,
                    chunks=10,
                    files=(f"episodes/{trial.slug}/0/front.mp4",),
                )
                for trial in some
            ]
            ledger.on(EpisodesSealed(time=1.0, episodes=episodes))
        ledger.on(RunEnded(time=2.0, complete=True, notes={}))
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        memory.append(resident_mib())
    return {
        "episodes_per_s": count / wall,
        "cpu_us_per_episode": cpu / count * 1e6,
        "memory_mib": memory,
    }


def measure_opening(root: Path) -> dict[str, object]:
    began = time.perf_counter()
    with LedgerView.open(root) as view:
        trials, episodes = view.trials(), view.episodes()
    opened = time.perf_counter() - began
    report = Report.build(
        config={},
        claim=Claim(level="bitwise"),
        trials=trials,
        episodes=episodes,
        throughput=Throughput(),
        version="0",
    )
    assert report.complete
    return {"open_s": opened, "report_s": time.perf_counter() - began}


def measure_steps(place: Path) -> dict[str, object]:
    costs: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(REPEATS):
        for states in (False, True):
            root = place / f"{repeat}-{states}"
            costs[states].append(record_episodes(root, states=states))
    numbers, both = (statistics.median(costs[which]) * 1e6 for which in (False, True))
    return {
        "numbers_us_per_step": numbers,
        "states_us_per_step": both,
        "share_of_1ms_step": both / 1e3,
    }


def record_episodes(root: Path, *, states: bool) -> float:
    """CPU seconds per step that recording takes; what the env and the engine do is left out."""
    trials = plan(GROUP)
    sinks = (StepsSink(), StatesSink()) if states else (StepsSink(),)
    rng = np.random.default_rng(0)
    records = step_records(rng)
    ledger = Ledger.create(root, trials, {})
    ledger.attach(ChunkRows(leg=ledger.leg))
    ledger.attach(StepRows(root))
    lanes, attempts = list(range(GROUP)), [0] * GROUP
    ledger.on(AttemptsBegan(time=0.0, lanes=lanes, trials=trials, attempts=attempts))
    events = chunk_events(trials)
    began = time.process_time()
    for event in events:
        ledger.on(event)
    episodes = []
    for trial in trials:
        folder = str(ledger.folder.attempt(trial, 0))
        start = AttemptStart(
            trial=trial, attempt=0, task=TaskInfo(name=""), prompt="", folder=folder, record={}
        )
        tracks = [sink.open(start) for sink in sinks]
        for record in records:
            for track in tracks:
                track.step(record)
        sealed = [file for track in tracks for file in track.seal(Outcome.SUCCESS)]
        files = tuple(os.path.relpath(file, root) for file in sealed)
        episodes.append(
            Episode(
                trial=trial,
                attempt=0,
                outcome=Outcome.SUCCESS,
                steps=STEPS,
                total_reward=1.0,
                files=files,
            )
        )
    ledger.on(EpisodesSealed(time=1.0, episodes=episodes))
    ledger.flush()
    cost = time.process_time() - began
    ledger.close()
    assert load_steps(root).num_rows == GROUP * (STEPS + 1)
    assert load_chunks(root).num_rows == len(events) // 2 * GROUP
    return cost / (GROUP * STEPS)


def step_records(rng: np.random.Generator) -> list[StepRecord]:
    return [
        StepRecord(
            step=step,
            action=rng.normal(size=4) if step else None,
            reward=0.5,
            terminated=step == STEPS,
            truncated=False,
            success=step == STEPS,
            chunk=(step - 1) // CHUNK,
            age=(step - 1) % CHUNK + 1,
            observation={"observation/state": rng.normal(size=39)} if step % CHUNK == 0 else None,
            state=rng.normal(size=80),
        )
        for step in range(STEPS + 1)
    ]


def chunk_events(trials: list[Trial]) -> list[BatchInferred | ChunksExecuted]:
    events: list[BatchInferred | ChunksExecuted] = []
    count = len(trials)
    lanes, attempts = list(range(count)), [0] * count
    chunk = Chunk(actions=np.zeros((CHUNK, 4)), version=0, source="local")
    for number in range(-(-STEPS // CHUNK)):
        events.append(
            BatchInferred(
                time=number + 0.3,
                batch=number,
                began=number + 0.1,
                ended=number + 0.2,
                lanes=lanes,
                trials=trials,
                attempts=attempts,
                chunks=[number] * count,
                delivered=[chunk] * count,
                ready=[float(number)] * count,
                size=count,
            )
        )
        events.append(
            ChunksExecuted(
                time=number + 0.9,
                lanes=lanes,
                trials=trials,
                attempts=attempts,
                chunks=[number] * count,
                steps=[CHUNK] * count,
                rewards=[np.zeros(CHUNK)] * count,
                terminated=[False] * count,
                truncated=[False] * count,
                busy=[0.01] * count,
                observed=[0.001] * count,
                final=[None] * count,
            )
        )
    return events


def resident_mib() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
