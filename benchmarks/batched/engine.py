"""The engine around a batched simulator, without a run folder: what the benchmarks time.

Needs numpy, gymnasium and msgpack, and nothing of hocket's other dependencies.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref, Trial
from hocket.core.events import BatchInferred, ChunksExecuted, Event, RunEnded
from hocket.engine.batches import BatchConfig, Batches
from hocket.engine.chunk_rules import make_rule
from hocket.engine.config import EngineConfig
from hocket.engine.inferring.inference import Inference
from hocket.engine.loop import Engine
from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig
from hocket.engine.trials import TrialQueue
from hocket.workers.fleet import Fleet, FleetConfig
from hocket.workers.inline import InlineRuntime


@dataclass(slots=True)
class Counted:
    """A reader that adds up, from the first batch on."""

    chunks: int = 0
    steps: int = 0
    batches: int = 0
    inferred: int = 0
    infer_s: float = 0.0
    first: float | None = None
    last: float = 0.0
    cpu_s: float = 0.0
    """Of the whole process."""
    complete: bool = False

    def on(self, event: Event) -> None:
        if isinstance(event, BatchInferred):
            if self.first is None:
                self.first = event.began
                self.cpu_s = -time.process_time()
            self.batches += 1
            self.inferred += len(event.lanes)
            self.infer_s += event.ended - event.began
        elif isinstance(event, ChunksExecuted):
            self.last = event.time
            self.chunks += len(event.lanes)
            self.steps += sum(event.steps)
        elif isinstance(event, RunEnded):
            self.cpu_s += time.process_time()
            self.complete = event.complete

    def close(self) -> None:
        """Nothing to close."""

    @property
    def wall_s(self) -> float:
        return self.last - (self.first or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What came of a run, and what the process used for it."""

    counted: Counted
    cpu_s: float
    wall_s: float


def roll(
    env: str, policy: Policy, *, rows: int, episodes: int, config: Mapping[str, Any], task: str
) -> Rolled:
    """Run `episodes` trials in `rows` rows."""
    worker = WorkerSpec(suites={env: Ref(name=env, config=config)}, lanes=rows)
    trials: Sequence[Trial] = [Trial(suite=env, task=task, seed=seed) for seed in range(episodes)]
    inference = Inference([policy], ["policy"])
    counted = Counted()
    fleet = Fleet(InlineRuntime(), worker, FleetConfig(lanes=rows, step_timeout_s=600.0))
    with fleet, closing(inference):
        scheduler = Scheduler(SchedulerConfig(cores=rows, max_batch=policy.spec.max_batch))
        engine = Engine(
            fleet=fleet,
            batches=Batches(policy, inference, scheduler, BatchConfig()),
            make_rule=make_rule(None, None),
            config=EngineConfig(),
            readers=(counted,),
        )
        cpu, wall = time.process_time(), time.perf_counter()
        engine.run(TrialQueue(trials), planned=trials)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Rolled(counted=counted, cpu_s=cpu, wall_s=wall)
