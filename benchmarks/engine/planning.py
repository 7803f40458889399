"""What `hocket plan` and `--lanes auto` predict, against the real engine, at settings drawn at
random: lanes 2 to 24, chunks of 30 to 320 ms, a policy of 10 to 150 ms and 0 to 15 ms a row, one or
two inferences at once. Env and policy sleep, so that two cores can host them. A prediction goes by
what chunks and inferences took in the run, as that of `hocket plan --from` does.

    python benchmarks/engine/planning.py [--settings 5] [--seconds 15] [--seed N]

A seed is drawn anew each time, and printed. Exit code 1 where one is off by more than 10 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

import numpy as np

import hocket
from hocket.core import events
from hocket.core.data import Array, Batch
from hocket.core.specs import PolicySpec
from hocket.engine.scheduling.model import ChunkWork, plan
from overhead import Clock

CHUNK = 16
STEPS = 180
"""Steps of an episode, on average (see `sleeper.py`)."""
MOST_OFF = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One situation."""

    lanes: int
    step_s: float
    base_s: float
    row_s: float
    concurrency: int

    def latency(self, batch: int) -> float:
        return self.base_s + self.row_s * batch


class Modelled:
    """Zeros, after the time that the setting says."""

    def __init__(self, setting: Setting) -> None:
        self.spec = PolicySpec(
            chunk_length=CHUNK,
            action_size=4,
            batch_invariant=True,
            concurrency=setting.concurrency,
        )
        self._setting = setting

    def infer(self, batch: Batch) -> Array:
        time.sleep(self._setting.latency(batch.size))
        return np.zeros((batch.size, CHUNK, 4))

    def close(self) -> None: ...


def draw(rng: random.Random) -> Setting:
    return Setting(
        lanes=round(exp(rng.uniform(log(2), log(24)))),
        step_s=exp(rng.uniform(log(0.002), log(0.02))),
        base_s=exp(rng.uniform(log(0.01), log(0.15))),
        row_s=rng.uniform(0.0, 0.015),
        concurrency=rng.choice([1, 1, 2]),
    )


class Measured(Clock):
    """Counts chunks, and what they and inferences took."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._setting = setting
        self.busy_s: list[float] = []
        self.over_s: list[float] = []
        """By how many seconds inferences took longer than they sleep."""

    def on(self, event: events.Event) -> None:
        super().on(event)
        if isinstance(event, events.ChunksExecuted):
            self.busy_s += event.busy
        elif isinstance(event, events.BatchInferred):
            self.over_s.append(event.ended - event.began - self._setting.latency(len(event.lanes)))


def predict(setting: Setting, execute_s: float, over_s: float = 0.0) -> float:
    """Chunks a second."""
    # They sleep: none waits for a core.
    work = ChunkWork(cores=setting.lanes, execute_s=execute_s, concurrency=setting.concurrency)
    rows = plan((setting.lanes,), work, lambda b: setting.latency(b) + over_s, actions_per_chunk=1)
    return rows[0].chunks_per_s


def measure(setting: Setting, seconds: float) -> Measured:
    """Count until the first trials run out, after about so many seconds."""
    chunks = predict(setting, CHUNK * setting.step_s) * seconds
    clock = Measured(setting)
    hocket.evaluate(
        env="sleeper:make",
        env_config={"step_s": setting.step_s},
        policy=Modelled(setting),
        lanes=setting.lanes,
        episodes=2 * setting.lanes + round(chunks * CHUNK / STEPS),
        readers=[clock],
    )
    return clock


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=None, help="draw the same settings again")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    rng = random.Random(seed)
    print(f"seed {seed}")
    print(f"{'lanes':>5} {'chunk':>7} {'policy':>17} {'at once':>7} {'chunks/s':>9}", end="")
    print(f" {'predicted':>9} {'ratio':>6}")
    worst = 0.0
    for _ in range(arguments.settings):
        setting = draw(rng)
        clock = measure(setting, arguments.seconds)
        found = clock.chunks / clock.wall_s
        expected = predict(setting, fmean(clock.busy_s), fmean(clock.over_s))
        worst = max(worst, abs(expected / found - 1.0))
        policy = f"{1000 * setting.base_s:.0f} + {1000 * setting.row_s:.1f} B ms"
        print(
            f"{setting.lanes:5d} {1000 * CHUNK * setting.step_s:4.0f} ms {policy:>17} "
            f"{setting.concurrency:7d} {found:9.2f} {expected:9.2f} {expected / found:6.3f}",
            flush=True,
        )
    print(f"off by {100 * worst:.1f} % at most (at most {100 * MOST_OFF:.0f} %)")
    return 0 if worst <= MOST_OFF else 1


if __name__ == "__main__":
    sys.exit(main())
