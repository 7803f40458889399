"""How many lanes a batch waits for, by the cycle model and what was measured. No clock.

The model is asked again only when what it was told may have moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf

from hocket.engine.lockstep import Company
from hocket.engine.model import Contention, Latency, Work, spare_s, target_batch
from hocket.engine.queues import Queue

RECHECK = 16
RECHECK_S = 0.05
"""Batches and seconds after which the model is asked again, even where lanes stayed the same."""
SLICE_S = 1e-3
"""Chunks shorter than what a core gives to one process before the next do not slow each other down
where they compete for it: they queue, which their own time does not show."""
MOVED = 0.1
"""Share of the lanes that must come or go for the model to be asked again at once; one alone, whose
episode has ended, comes and goes too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler is told; the rest it measures."""

    cores: int
    max_batch: int = 64
    concurrency: int = 1
    """Inferences that may run at once."""
    handling_s: float = 0.0
    handling_row_s: float = 0.0
    """Seconds of a core that a batch takes beside the policy, and each row in it."""

    def __post_init__(self) -> None:
        for name in ("cores", "max_batch", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


class Aim:
    """Sets the target of each queue, from what inferences and chunks were seen to take."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._latency = Latency()
        self._check_at = (0, -inf)
        """From which batch on, and when, the model is asked again."""
        self.infer_s: list[float] = [0.0]
        """The latency of every size that lanes can make, as of the last check."""
        self.contention = Contention(config.cores)
        self.company = Company()

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        for size, seconds in points.items():
            self._latency.seed(size, seconds)
        self._check_at = (0, -inf)

    def inferred(self, size: int, seconds: float) -> None:
        """This is what a batch cost."""
        self._latency.observe(size, seconds)
        if self.company.step_s is not None:
            self.company.inferred(seconds - self.expected_s(size))

    def expected_s(self, size: int) -> float:
        """How long a batch of this size should take."""
        return self.infer_s[min(size, len(self.infer_s) - 1)]

    def take(
        self,
        queue: Queue,
        queues: Iterable[Queue],
        now: float,
        *,
        lanes: int,
        batches: int,
        has_executed: bool,
    ) -> None:
        """Bring the queue's target up to date. There are so many lanes in all queues, so many
        batches have left, and lanes have executed chunks or never did."""
        sizes = max(len(self.infer_s), min(self._config.max_batch, lanes) + 1)
        batch, at = self._check_at
        if (batches >= batch and now >= at) or sizes > len(self.infer_s):
            # Whether rows stay together is seen early, and a run may be short.
            is_early = self.company.step_s is not None and batches < RECHECK
            more = max(1, batches) if is_early else RECHECK
            self._check_at = (batches + more, now + RECHECK_S)
            self.infer_s = [0.0, *map(self._latency.predict, range(1, sizes))]
            for place in queues:
                place.members_at_target = -1
        moved = abs(queue.members - queue.members_at_target)
        if queue.members_at_target < 0 or moved > max(1, MOVED * queue.members_at_target):
            queue.members_at_target = queue.members
            if queue.seconds.value is None:
                is_server = batches > self._config.concurrency and not has_executed
                queue.target = self._first_target(queue, lanes, is_server=is_server)
            else:
                queue.target = self._target(queue, lanes, queue.seconds.value)

    def _first_target(self, queue: Queue, lanes: int, *, is_server: bool) -> int:
        """Nothing is known yet. If lanes will execute, one cohort more than can be inferred at once
        is the least that keeps all busy; a server's connections just go."""
        queue.is_together = self._may_be_together(queue, lanes) and self.company.begins(
            queue.members, self._latency.predict
        )
        if queue.is_together:
            return queue.members
        cohorts = 1 if is_server else self._config.concurrency + 1
        return min(self._config.max_batch, ceil(queue.members / cohorts))

    def _target(self, queue: Queue, lanes: int, seconds: float) -> int:
        config, is_short = self._config, seconds < SLICE_S
        work = Work(
            cores=config.cores,
            execute_s=seconds if is_short else seconds / self.contention.slowdown,
            concurrency=config.concurrency * queue.members / lanes,
            contention=1.0 if is_short else self.contention.exponent,
            max_batch=config.max_batch,
            handling_s=config.handling_s,
            handling_row_s=config.handling_row_s,
        )
        regulars = self._regulars(queue, seconds)
        target = target_batch(regulars, work, self._latency.predict)
        queue.spare_s = spare_s(target, regulars, work, self._latency.predict)
        queue.is_together = self._may_be_together(queue, lanes) and self.company.stays(
            queue.members, target, work, self._latency.predict, are_together=queue.is_together
        )
        return queue.members if queue.is_together else target

    def _may_be_together(self, queue: Queue, lanes: int) -> bool:
        fits = 1 < queue.members <= self._config.max_batch
        return fits and queue.members == lanes and self._config.concurrency == 1

    def _regulars(self, queue: Queue, seconds: float) -> int:
        """The lanes, each counted by how often it comes: one that records video comes seldom."""
        infer_s = self.infer_s[queue.target]
        count = float(queue.members - sum(queue.kinds.values()))
        for kind, lanes in queue.kinds.items():
            usual_s = max(seconds, kind.seconds.value or seconds)
            count += lanes * (seconds + infer_s) / (usual_s + infer_s)
        return max(1, round(count))
