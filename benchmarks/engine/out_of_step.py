"""Lanes that fall out of step, for real: 32 envs, episodes of 60 to 300 steps, chunks of 16.

A policy that takes 75 + 8.5 B ms answers envs whose steps take 10 ms (sleeping, so that 2 cores
can host 32). hocket's rule runs beside what the field does: full batches whenever any env needs a
chunk, one global clock with holding, greedy batches, and the three best static (batch, wait) pairs
that the simulation finds. Repeats are interleaved; medians are shown.

    python benchmarks/engine/out_of_step.py [--repeats 5] [--seconds 12] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from families import Setting
from hocket.core import plugins
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Array, Batch, Ref, Trial
from hocket.core.events import BatchInferred, ChunksExecuted, Event
from hocket.core.specs import PolicySpec
from hocket.engine.batches import BatchConfig, Batches
from hocket.engine.chunk_rules import make_rule
from hocket.engine.config import EngineConfig
from hocket.engine.inferring.inference import Inference
from hocket.engine.loop import Engine
from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.engine.trials import TrialQueue
from hocket.workers.fleet import Fleet, FleetConfig
from scheduling_simulation import rate, static_pairs
from simulation import Rule, Static
from sleeper import make

LANES, CHUNK, STEP_S = 32, 16, 0.01
BASE_S, ROW_S = 0.075, 0.0085
WARM_S = 3.0
SETTING = Setting(
    family="real",
    lanes=LANES,
    cores=inf,
    execute_s=CHUNK * STEP_S,
    base_s=BASE_S,
    row_s=ROW_S,
    max_batch=LANES,
)


class Modelled:
    """Zeros, after the time that a pi0-sized policy takes."""

    spec = PolicySpec(chunk_length=CHUNK, action_size=4, batch_invariant=True, max_batch=LANES)

    def infer(self, batch: Batch) -> Array:
        time.sleep(BASE_S + ROW_S * batch.size)
        return np.zeros((batch.size, CHUNK, 4))

    def close(self) -> None: ...


class Meter:
    """Counts from `WARM_S` after the first chunk on, and stops the engine in the end."""

    def __init__(self, seconds: float) -> None:
        self.stop: Callable[[], None] = lambda: None
        self.steps = self.chunks = self.inferences = self.rows = 0
        self._seconds = seconds
        self._began: float | None = None

    def on(self, event: Event) -> None:
        if not isinstance(event, (BatchInferred, ChunksExecuted)):
            return
        self._began = event.time if self._began is None else self._began
        if event.time < self._began + WARM_S:
            return
        if event.time > self._began + WARM_S + self._seconds:
            self.stop()
        elif isinstance(event, BatchInferred):
            self.inferences += 1
            self.rows += len(event.lanes)
        else:
            self.steps += sum(event.steps)
            self.chunks += len(event.lanes)

    def close(self) -> None: ...


def run_engine(rule: Rule, seconds: float) -> dict[str, float]:
    """hocket's engine with one scheduling rule or another."""
    policy, meter = Modelled(), Meter(seconds)
    inference = Inference([policy], ["modelled"])
    spec = WorkerSpec(suites={"s": Ref(name="sleeper:make", config={"step_s": STEP_S})})
    fleet = Fleet(plugins.build("runtimes", "local"), spec, FleetConfig(lanes=LANES))
    with fleet:
        batches = Batches(policy, inference, rule, BatchConfig())  # type: ignore[arg-type]
        engine = Engine(
            fleet=fleet,
            batches=batches,
            make_rule=make_rule(None, None),
            config=EngineConfig(),
            readers=[meter],
        )
        meter.stop = engine.stop
        trials = [Trial(suite="s", task="make", seed=seed) for seed in range(20 * LANES)]
        engine.run(TrialQueue(trials), planned=trials)
    inference.close()
    return {
        "steps_per_s": meter.steps / seconds,
        "rows_per_chunk": meter.rows / max(1, meter.chunks),
        "batch": meter.rows / max(1, meter.inferences),
    }


def run_lockstep(seconds: float, *, holds: bool) -> dict[str, float]:
    """A vector env in lockstep. Full batches, when any env needs a chunk; or, with `holds`, when
    all do, those that wait being held. Held steps and those of a reset are not useful."""
    envs = gymnasium.vector.AsyncVectorEnv([make] * LANES, shared_memory=True, context="fork")
    useful = inferences = served = 0
    try:
        envs.reset(seed=list(range(LANES)))
        used = np.full(LANES, CHUNK)
        actions = np.zeros((LANES, 4), np.float32)
        ended = np.zeros(LANES, bool)
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < WARM_S + seconds:
            needs = used >= CHUNK
            if needs.all() if holds else needs.any():
                time.sleep(BASE_S + ROW_S * LANES)
                used[needs] = 0
                if now >= WARM_S:
                    inferences += 1
                    served += int(needs.sum())
                needs[:] = False
            _, _, terminated, _, _ = envs.step(actions)
            moved = ~needs & ~ended
            used[moved] += 1
            if now >= WARM_S:
                useful += int(moved.sum())
            used[terminated] = CHUNK
            ended = terminated
    finally:
        envs.close()
    return {
        "steps_per_s": useful / seconds,
        "rows_per_chunk": LANES * inferences / max(1, served),
        "batch": float(LANES),
    }


def best_pairs(count: int) -> list[tuple[int, float]]:
    def speed(pair: tuple[int, float]) -> float:
        return rate(SETTING, lambda: Static(*pair, 1), range(2))

    return sorted(static_pairs(SETTING), key=speed, reverse=True)[:count]


def contenders() -> dict[str, Callable[[float], dict[str, float]]]:
    config = SchedulerConfig(cores=2, max_batch=LANES)
    found: dict[str, Callable[[float], dict[str, float]]] = {
        "hocket": lambda seconds: run_engine(Scheduler(config), seconds),
        "greedy": lambda seconds: run_engine(Static(LANES, 0.0, 1), seconds),
    }
    for batch, wait_s in best_pairs(3):
        name = f"static {batch}, {1000 * wait_s:.0f} ms"
        found[name] = lambda seconds, b=batch, w=wait_s: run_engine(  # type: ignore[misc]
            Static(b, w, 1), seconds
        )
    found["any() in full batches"] = lambda seconds: run_lockstep(seconds, holds=False)
    found["synced, holding"] = lambda seconds: run_lockstep(seconds, holds=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {}
    sides = contenders()
    for repeat in range(arguments.repeats):
        for name, side in sides.items():
            runs.setdefault(name, []).append(side(arguments.seconds))
            print(
                f"repeat {repeat + 1}, {name}: {runs[name][-1]['steps_per_s']:.0f}", file=sys.stderr
            )
    rows: dict[str, dict[str, Any]] = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }
    ours = rows["hocket"]["steps_per_s"]
    print(f"{'':24} {'env steps/s':>12} {'rows/chunk':>11} {'batch':>6} {'hocket is':>10}")
    for name, row in rows.items():
        print(
            f"{name:24} {row['steps_per_s']:12.0f} {row['rows_per_chunk']:11.3f} "
            f"{row['batch']:6.1f} {ours / row['steps_per_s']:9.2f}x"
        )
    static = max(row["steps_per_s"] for name, row in rows.items() if name.startswith("static"))
    share, waste = ours / static, rows["hocket"]["rows_per_chunk"]
    print(f"hocket / best static: {share:.3f} (at least 0.95)")
    print(f"inferred rows per executed chunk: {waste:.3f} (at most 1.02)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"medians": rows, "runs": runs}, indent=1))
    return 0 if share >= 0.95 and waste <= 1.02 else 1


if __name__ == "__main__":
    sys.exit(main())
