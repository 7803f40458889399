"""From ready lanes to chunks: which rows the policy works on, and when."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from hocket.core.contracts.policy import Binds, Policy, Reconnects
from hocket.core.data import EnvSpec
from hocket.engine.inference import Answered, Inference, Job, WarmedUp
from hocket.engine.lanes import Lane, Rows
from hocket.engine.queues import BatchPlan
from hocket.engine.scheduler import Scheduler
from hocket.workers.fleet import Fleet

HANDLING_S = 6e-5
HANDLING_ROW_S = 3e-5
"""What a batch costs beside the policy, about, and each row of it that another process executes:
without it the scheduler would think that two small batches of a policy that takes no time are as
cheap as one."""
CARRYING_S = 5e-5
"""What it costs such a process, about, to be given a chunk and to tell what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """How batches are made."""

    pad: bool = False
    """Fill every batch to the policy's `max_batch`, so that all have one shape."""
    keep_observations: bool = False
    """Give back what each row saw."""


class Flight(NamedTuple):
    """A batch that the policy works on."""

    numbers: tuple[int, ...]
    lanes: list[Lane]
    rows: Rows
    ready_at: list[float]
    """When each row's observation had come."""


class Batches:
    """Joins the scheduler, which decides, with the policy's threads, which infer.

    A policy is bound to a new task, and warmed up for a new signature, only while it is idle; until
    then no batch leaves. Warm-up also tells the scheduler what each batch size costs.
    """

    def __init__(
        self, policy: Policy, inference: Inference, scheduler: Scheduler, config: BatchConfig
    ) -> None:
        self._policy = policy
        # Asked once: a look for a Protocol's methods costs more than a whole turn.
        self._binds = policy if isinstance(policy, Binds) else None
        self._flushed = policy if isinstance(policy, Reconnects) and policy.flushes else None
        self._reconnects = 0
        self._inference = inference
        self._scheduler = scheduler
        self._config = config
        self._pad_to = policy.spec.max_batch if config.pad else 0
        self._to_bind: list[EnvSpec] = []
        self._queues: dict[Hashable, int] = {}
        self._cold: dict[Hashable, int] = {}
        self._warm: set[Hashable] = set()
        self._is_warming = False
        self._flying: dict[int, Flight] = {}
        self._answered: list[Answered] = []
        self._count = 0
        self._is_at_hand = False
        """Lanes are rows of a simulator in this process."""

    def bind(self, spec: EnvSpec) -> None:
        """Tell the policy of a new task before any row of it is inferred."""
        if self._binds is not None:
            self._to_bind.append(spec)

    def queue(self, kind: Hashable) -> int:
        """The number of the queue in which rows of one kind wait for each other."""
        return self._queues.setdefault(kind, len(self._queues))

    def add(self, number: int, lane: Lane, now: float) -> None:
        """A lane was reset and waits for its first chunk."""
        lane.ready_at = now
        if lane.queue not in self._warm:
            self._cold.setdefault(lane.queue, number)
        self._scheduler.ready(number, lane.queue, now, None)

    def add_all(
        self, numbers: Sequence[int], lanes: Sequence[Lane], now: float, busy_s: Sequence[float]
    ) -> None:
        """Lanes whose chunks ended in one turn wait for the next."""
        for lane in lanes:
            lane.ready_at = now
        if not self._is_at_hand:
            busy_s = [seconds + CARRYING_S for seconds in busy_s]
        queues = {lane.queue for lane in lanes}
        for queue in queues:
            members, durations = numbers, busy_s
            if len(queues) > 1:
                is_member = [lane.queue == queue for lane in lanes]
                members = list(compress(numbers, is_member))
                durations = list(compress(busy_s, is_member))
            if queue not in self._warm:
                self._cold.setdefault(queue, members[0])
            self._scheduler.ready_together(members, queue, now, durations)

    def remove(self, number: int) -> None:
        """A lane is not waiting any more, nor will it come back by itself."""
        self._scheduler.leave(number)

    def wanted(self, now: float) -> tuple[int, float]:
        """How many lanes must come before anything can leave, if they come within so many seconds
        of the first."""
        return (1, 0.0) if self._must_wait else self._scheduler.wanted(now)

    def patience(self, now: float, longest: float) -> float:
        """Seconds until a batch may be due with nothing else happening."""
        if self._must_wait:
            return longest
        wake_at = self._scheduler.wake_at(now)
        return longest if wake_at is None else min(max(0.0, wake_at - now), longest)

    @property
    def awaits_all(self) -> bool:
        """Whether nothing leaves before all lanes are ready, or overdue."""
        return self._scheduler.awaits_all

    @property
    def _must_wait(self) -> bool:
        """Whether nothing may leave before the policy has ended what it does."""
        return self._is_warming or bool((self._to_bind or self._cold) and self._flying)

    def leave(self, lanes: Mapping[int, Lane], fleet: Fleet, now: float) -> bool:
        """Let every batch go that is due; true where one was answered already."""
        if self._must_wait:
            return False
        if self._to_bind and self._binds is not None:
            for spec in self._to_bind:
                self._binds.bind(spec)
            self._to_bind.clear()
        if self._cold:
            self._scheduler.share_step(fleet.step_s)
            self._warm_up(lanes, fleet)
            return False
        while (plan := self._scheduler.next_batch(now)) is not None:
            self._submit(plan, lanes, fleet)
        return bool(self._answered)

    def answers(self, now: float) -> list[tuple[Answered, Flight]]:
        """Answers that came, each with its lanes."""
        found = []
        came = [*self._answered, *self._inference.answers()]
        self._answered.clear()
        for answer in came:
            if isinstance(answer, WarmedUp):
                # After an error rows err one by one, each with its own trial's name.
                self._is_warming = False
                self._warm.add(answer.queue)
                self._cold.pop(answer.queue, None)
                self._scheduler.seed_latency(
                    {n: took_s + self._handling_s(n) for n, took_s in answer.latencies.items()}
                )
                continue
            flight = self._flying.pop(answer.job.number)
            size = len(flight.numbers)
            took_s = answer.ended - answer.began + self._handling_s(size)
            self._scheduler.inferred(size, took_s, now)
            found.append((answer, flight))
        return found

    def _handling_s(self, rows: int) -> float:
        return HANDLING_S + (0.0 if self._is_at_hand else HANDLING_ROW_S * rows)

    @property
    def recalls(self) -> bool:
        """Whether chunks may have to be recalled when their source is gone."""
        return self._flushed is not None

    def stale(self) -> Callable[[str], bool] | None:
        """After a reconnect, once: which sources' chunks are to be recalled."""
        if self._flushed is None or self._flushed.reconnects == self._reconnects:
            return None
        self._reconnects = self._flushed.reconnects
        return self._flushed.is_stale

    def executing(self, numbers: Sequence[int], lanes: Sequence[Lane], now: float) -> None:
        """Chunks were sent to these lanes."""
        kinds = {lane.kind for lane in lanes}
        if len(kinds) == 1:
            self._scheduler.executing(numbers, kinds.pop(), now)
            return
        by_kind: dict[int, list[int]] = {}
        for number, lane in zip(numbers, lanes, strict=True):
            by_kind.setdefault(lane.kind, []).append(number)
        for kind, group in by_kind.items():
            self._scheduler.executing(group, kind, now)

    def _warm_up(self, lanes: Mapping[int, Lane], fleet: Fleet) -> None:
        queue, number = self._cold.popitem()
        lane = lanes.get(number)
        if lane is None or lane.queue != queue:
            # That lane is lost; the next one of this signature asks again.
            return
        largest = min(self._policy.spec.max_batch, fleet.config.lanes)
        sizes = sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})
        self._is_warming = True
        job = self._job(-1, Rows([lane]), [lane], [number], fleet)
        self._inference.warm_up(job, [1] if self._pad_to else sizes)

    def _submit(self, plan: BatchPlan, lanes: Mapping[int, Lane], fleet: Fleet) -> None:
        members = [lanes[number] for number in plan.lanes]
        rows = Rows(members)
        self._count += 1
        ready_at = [lane.ready_at for lane in members]
        self._flying[self._count] = Flight(plan.lanes, members, rows, ready_at)
        job = self._job(self._count, rows, members, plan.lanes, fleet)
        self._scheduler.share_step(fleet.step_s)
        answer = self._inference.at_once(job)
        if answer is not None:
            self._answered.append(answer)
            return
        self._inference.submit(job)
        fleet.expect(plan.lanes, self._scheduler.infer_s(len(members)))

    def _job(
        self, number: int, rows: Rows, lanes: list[Lane], numbers: Sequence[int], fleet: Fleet
    ) -> Job:
        stacked = fleet.gather(numbers)
        self._is_at_hand = stacked is not None
        views = [fleet.arrays(lane) for lane in numbers] if stacked is None else ()
        return Job(
            number=number,
            queue=lanes[0].queue,
            rows=rows,
            views=views,
            stacked=stacked,
            action_size=lanes[0].action_size,
            pad_to=self._pad_to,
            keep=self._config.keep_observations,
        )
