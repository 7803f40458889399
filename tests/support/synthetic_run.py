"""An engine's stream of events without an engine: what a trial gives depends on the trial alone.

As a script it goes on with the run in a folder, line by line on standard output, to be killed.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hocket.core.contracts.recorder import AttemptStart, StepRecord
from hocket.core.data import Chunk, Episode, Outcome, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
    EpisodesSealed,
    Event,
    LanesReady,
    RunEnded,
    RunStarted,
)
from hocket.core.specs import PolicySpec, TaskInfo
from hocket.records.chunks import ChunkRows
from hocket.records.folder import RunFolder
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.writer import LedgerConfig
from hocket.records.step_rows import StateRows, StepRows
from hocket.workers.sinks.states import StatesSink
from hocket.workers.sinks.steps import StepsSink

PER_CHUNK = 3
QUICK = LedgerConfig(group_s=0.004)


def plan(count: int) -> list[Trial]:
    return [Trial(suite="toy", task=f"task{i % 3}", seed=i) for i in range(count)]


def steps_of(trial: Trial) -> int:
    return 1 + trial.seed % 8


def reward_of(trial: Trial, step: int) -> float:
    return trial.seed + step / 8


def episode_of(trial: Trial, attempt: int, files: Sequence[str] = ()) -> Episode:
    steps = steps_of(trial)
    return Episode(
        trial=trial,
        attempt=attempt,
        outcome=Outcome.SUCCESS if trial.seed % 2 else Outcome.FAILURE,
        steps=steps,
        total_reward=sum(reward_of(trial, step + 1) for step in range(steps)),
        terminated=bool(trial.seed % 2),
        truncated=not trial.seed % 2,
        chunks=-(-steps // PER_CHUNK),
        seconds=0.5,
        files=tuple(files),
    )


def began(*trials: Trial, attempt: int = 0) -> AttemptsBegan:
    lanes = range(len(trials))
    return AttemptsBegan(time=0.0, lanes=lanes, trials=trials, attempts=[attempt] * len(trials))


def sealed(*episodes: Episode) -> EpisodesSealed:
    return EpisodesSealed(time=1.0, episodes=episodes)


def failed(trial: Trial, attempt: int, *, again: bool) -> AttemptFailed:
    return AttemptFailed(
        time=1.0, lane=0, trial=trial, attempt=attempt, error="it broke", again=again
    )


ENDED = RunEnded(time=9.0, complete=True, notes={})


def open_run(root: Path, *, resume: bool, trials: Sequence[Trial] = ()) -> Ledger:
    """A ledger with all its tables attached."""
    ledger = (
        Ledger.open(root, config=QUICK)
        if resume
        else Ledger.create(root, trials, {"made": "by a test"}, config=QUICK)
    )
    ledger.attach(ChunkRows(leg=ledger.leg))
    ledger.attach(StepRows(ledger.folder.root))
    ledger.attach(StateRows(ledger.folder.root))
    return ledger


def seal_steps(folder: RunFolder, trial: Trial, attempt: int) -> list[str]:
    """What a worker's sinks do with an attempt; the files, relative to the run folder."""
    start = AttemptStart(
        trial=trial,
        attempt=attempt,
        task=TaskInfo(name=trial.task),
        prompt="",
        folder=str(folder.attempt(trial, attempt)),
        record={},
    )
    tracks = (StepsSink().open(start), StatesSink().open(start))
    for step in range(steps_of(trial) + 1):
        is_last = step == steps_of(trial)
        record = StepRecord(
            step=step,
            action=np.array([trial.seed, step]) if step else None,
            reward=reward_of(trial, step) if step else 0.0,
            terminated=is_last and bool(trial.seed % 2),
            truncated=is_last and not trial.seed % 2,
            success=None if step == 0 else is_last,
            chunk=(step - 1) // PER_CHUNK,
            age=(step - 1) % PER_CHUNK + 1 if step else 0,
            observation={"observation/state": np.array([step, 0.5, 1.0])}
            if step % PER_CHUNK == 0
            else None,
            state=np.array([step, trial.seed], np.float64),
        )
        for track in tracks:
            track.step(record)
    files = [file for track in tracks for file in track.seal(Outcome.FINISHED)]
    return [str(Path(file).relative_to(folder.root)) for file in files]


@dataclass(slots=True)
class Attempt:
    trial: Trial
    number: int
    chunk: int = 0


@dataclass(slots=True)
class SyntheticRun:
    """Plays trials on lanes in a random order, with random faults, and seals out of order."""

    folder: RunFolder
    rng: random.Random
    emit: Callable[[Event], None]
    lanes: int = 5
    fault_rate: float = 0.1
    retries: int = 3
    """Faults of one trial before it ends as ERROR."""

    def play(self, trials: Sequence[Trial], attempts: dict[str, int]) -> None:
        todo = list(trials)
        faults: dict[Trial, int] = {}
        live: dict[int, Attempt] = {}
        sealing: list[Episode] = []
        clock = itertools.count()
        batches = itertools.count(1)
        self.emit(
            RunStarted(trials=todo, done=[], lanes=5, cores=1, policy=PolicySpec(chunk_length=3))
        )
        while todo or live or sealing:
            now = float(next(clock))
            free = [lane for lane in range(self.lanes) if lane not in live]
            if todo and free:
                chosen = self.rng.sample(free, min(len(todo), self.rng.randint(1, len(free))))
                for lane in chosen:
                    trial = todo.pop(self.rng.randrange(len(todo)))
                    live[lane] = Attempt(trial, attempts.get(trial.id, 0))
                    attempts[trial.id] = live[lane].number + 1
                self.emit(AttemptsBegan(time=now, **_parallel(live, chosen)))
            busy = [lane for lane in live if self.rng.random() < 0.7]
            if busy:
                for event in self._chunk(now, next(batches), live, busy):
                    self.emit(event)
                self._settle(now, live, busy, todo, faults, sealing)
            self._seal(now, sealing, finish=not live and not todo)
        self.emit(RunEnded(time=float(next(clock)), complete=True, notes={}))

    def _chunk(
        self, now: float, batch: int, live: dict[int, Attempt], lanes: list[int]
    ) -> Iterator[Event]:
        same = _parallel(live, lanes)
        numbers = [live[lane].chunk for lane in lanes]
        if not any(numbers):
            yield LanesReady(time=now, **same)
        chunk = Chunk(actions=np.zeros((PER_CHUNK, 2)), version=batch, source="here")
        yield BatchInferred(
            time=now + 0.3,
            batch=batch,
            began=now + 0.1,
            ended=now + 0.2,
            chunks=numbers,
            delivered=[chunk] * len(lanes),
            ready=[now] * len(lanes),
            size=len(lanes),
            **same,
        )
        executed = [self._executed(live[lane]) for lane in lanes]
        yield ChunksExecuted(
            time=now + 0.5,
            chunks=numbers,
            steps=executed,
            rewards=[np.zeros(steps) for steps in executed],
            terminated=[False] * len(lanes),
            truncated=[False] * len(lanes),
            busy=[0.01] * len(lanes),
            observed=[0.001] * len(lanes),
            final=[None] * len(lanes),
            **same,
        )

    def _executed(self, attempt: Attempt) -> int:
        return min(PER_CHUNK, steps_of(attempt.trial) - attempt.chunk * PER_CHUNK)

    def _settle(
        self,
        now: float,
        live: dict[int, Attempt],
        lanes: list[int],
        todo: list[Trial],
        faults: dict[Trial, int],
        sealing: list[Episode],
    ) -> None:
        """Some attempts fail, some end, the others go on."""
        for lane in lanes:
            attempt = live[lane]
            trial = attempt.trial
            attempt.chunk += 1
            is_over = attempt.chunk * PER_CHUNK >= steps_of(trial)
            if self.rng.random() < self.fault_rate:
                faults[trial] = faults.get(trial, 0) + 1
                again = faults[trial] <= self.retries
                self.emit(
                    AttemptFailed(
                        time=now,
                        lane=lane,
                        trial=trial,
                        attempt=attempt.number,
                        error="a fault",
                        again=again,
                    )
                )
                if again:
                    todo.append(trial)
                else:
                    lost = Episode(
                        trial=trial,
                        attempt=attempt.number,
                        outcome=Outcome.ERROR,
                        steps=0,
                        total_reward=0.0,
                        error="a fault",
                    )
                    self.emit(EpisodesEnded(time=now, lanes=[lane], episodes=[lost]))
                    self.emit(EpisodesSealed(time=now, episodes=[lost]))
            elif is_over:
                files = seal_steps(self.folder, trial, attempt.number)
                sealing.append(episode_of(trial, attempt.number, files))
                self.emit(EpisodesEnded(time=now, lanes=[lane], episodes=[sealing[-1]]))
            else:
                continue
            del live[lane]

    def _seal(self, now: float, sealing: list[Episode], *, finish: bool) -> None:
        self.rng.shuffle(sealing)
        count = len(sealing) if finish else self.rng.randint(0, len(sealing))
        if count:
            self.emit(EpisodesSealed(time=now, episodes=sealing[:count]))
            del sealing[:count]


def _parallel(live: dict[int, Attempt], lanes: Sequence[int]) -> dict[str, list[int]]:
    """The columns that most events share."""
    found = [live[lane] for lane in lanes]
    columns: dict[str, list[int]] = {
        "lanes": list(lanes),
        "attempts": [attempt.number for attempt in found],
    }
    return {**columns, "trials": [attempt.trial for attempt in found]}  # type: ignore[list-item]


def main() -> None:
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    with open_run(root, resume=True) as ledger:
        ledger.sweep()

        def emit(event: Event) -> None:
            ledger.on(event)
            sys.stdout.write(".")
            sys.stdout.flush()
            time.sleep(0.001)

        run = SyntheticRun(ledger.folder, random.Random(seed), emit)
        run.play(ledger.remaining(), ledger.next_attempts())
    sys.stdout.write("!")


if __name__ == "__main__":
    main()
