"""Batches rows from all connections, by the engine's own scheduler.

A connection's row is a lane, of which the scheduler knows only that it is ready: it awaits nobody.
Clients that come straight back are the one exception: see `ClosedLoop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.core.contracts.policy import Policy
from hocket.core.data import Chunk, Observation, Row, Signature, signature
from hocket.engine.inferring.deadline import InferDeadline
from hocket.engine.inferring.inference import Inference
from hocket.engine.inferring.policy_thread import Answered, Job
from hocket.engine.inferring.suspects import Suspects
from hocket.engine.scheduling.scheduler import BatchPlan, Scheduler, SchedulerConfig
from hocket.errors import PolicyError, PolicyHungError, PolicyUnavailableError
from hocket.serve.closed_loop import ClosedLoop
from hocket.serve.frames import Overloaded
from hocket.serve.metrics import Metrics

_LOG = logging.getLogger("hocket.serve")

WATCH_S = 1.0
"""Seconds between two looks for calls that take too long."""
MAX_KINDS = 32
"""Kinds of observation that are kept in mind; of more the one used longest ago is forgotten."""
NO_CONTENTION = 1 << 20
"""Cores that the scheduler is told of: clients bring their own."""
_Kind = tuple[Signature, int | None, int | None]
"""What rows of one batch have in common: keys, shapes and dtypes, and numbers in an action; and the
one lane of a row that shares no batch."""


class TooLate(PolicyError):
    """A chunk cannot be there when it is needed."""

    def __init__(self, within_ms: float, expected_ms: float) -> None:
        super().__init__(
            f"The chunk cannot be there within {within_ms:.0f} ms: about {expected_ms:.0f} ms are "
            "needed."
        )
        self.expected_ms = expected_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    chunk: Chunk | None
    error: Exception | None
    batch: int
    infer_s: float


@dataclass(slots=True, eq=False)
class _Waiting:
    name: str
    row: Row
    view: Observation
    future: asyncio.Future[Served]
    think_s: float | None
    """Seconds from the last answer of its lane to this row."""
    kind: _Kind
    deadline: float = math.inf
    """On the clock of perf_counter: when its chunk is needed."""


class Batcher:
    """Rows in, answers out; owned by the event loop. Inference runs on threads of its own."""

    def __init__(
        self,
        policy: Policy,
        name: str,
        metrics: Metrics,
        *,
        max_queue: int,
        action_size: int | None,
        deadline: InferDeadline,
    ) -> None:
        """A policy whose `infer` misses the `deadline` is given up; callers are told."""
        spec = policy.spec
        self._scheduler = Scheduler(
            SchedulerConfig(
                cores=NO_CONTENTION, max_batch=spec.max_batch, concurrency=spec.concurrency
            )
        )
        self._closed_loop = ClosedLoop(spec.max_batch, self._scheduler.latency)
        self._waits_for_clients = spec.concurrency == 1
        self._inference = Inference([policy], [name], deadline=deadline)
        self._metrics = metrics
        metrics.concurrency = spec.concurrency
        self._max_queue = max_queue
        self._action_size = action_size
        self._max_batch = spec.max_batch
        self._waiting: dict[int, _Waiting] = {}
        """Rows that wait or are being inferred, by lane."""
        self._answered_at: dict[int, float] = {}
        """When each open lane had its last answer."""
        self._jobs: dict[int, tuple[int, ...]] = {}
        """Lanes of the batches that are being inferred."""
        self._due: dict[int, float] = {}
        """When those should be back."""
        self._urgent: dict[int, _Waiting] = {}
        """Rows with a deadline that are in no batch, by lane."""
        self._lane_ids = itertools.count()
        self._job_numbers = itertools.count()
        self._kinds: dict[_Kind, None] = {}
        """Kinds of observation, the one used longest ago first."""
        self._suspects = Suspects()
        self._inferred_alone: dict[str, str] = {}
        """Sessions of suspects, and the name of each."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping = False
        self._warming: asyncio.Future[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._hung: PolicyUnavailableError | None = None
        """Why nothing is answered any more: the policy never returned."""

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # The loop may be gone while a long call still runs: then nobody waits for it.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._take_answers)

        self._inference.start(wake)
        self._watching = loop.create_task(self._watch())

    async def warm_up(self, row: Row, view: Observation) -> None:
        """Try every batch shape with one row, so that no client pays for a first call. To be
        called before the first `submit`."""
        sizes = [1 << n for n in range(self._max_batch.bit_length()) if 1 << n < self._max_batch]
        self._warming = asyncio.get_running_loop().create_future()
        job = Job(
            number=next(self._job_numbers),
            queue=(signature(view), self._size(row), None),
            rows=(row,),
            views=[view],
            action_size=self._size(row),
        )
        self._inference.warm_up(job, [*sizes, self._max_batch])
        try:
            await self._warming
        finally:
            self._warming = None

    def open_lane(self) -> int:
        """A new lane, on which one row at a time may wait."""
        return next(self._lane_ids)

    def close_lane(self, lane: int) -> None:
        """Forget a lane whose client is gone. A waiting row is dropped; one in a batch is computed
        in vain."""
        self._answered_at.pop(lane, None)
        waiting = self._waiting.pop(lane, None)
        self._urgent.pop(lane, None)
        if waiting is not None:
            waiting.future.cancel()
        self._scheduler.leave(lane)
        self._closed_loop.came(lane)
        self._metrics.queue_depth = self._scheduler.waiting

    def submit(
        self,
        lanes: Sequence[int],
        names: Sequence[str],
        rows: Sequence[Row],
        views: Sequence[Observation],
        within_s: float = math.inf,
    ) -> list[asyncio.Future[Served]]:
        """Queue rows of one signature, all or none (Overloaded; TooLate where they cannot be
        answered `within_s`), and return their future answers.
        Names say whose trial a row is of: after a batch that moved state and raised, rows of these
        names share no batch until one of them raises alone, or their sessions end."""
        if self._hung is not None:
            raise self._hung
        if len(self._waiting) + len(rows) > self._max_queue:
            raise Overloaded(
                f"{len(self._waiting)} observations wait already; this server's limit is "
                f"{self._max_queue}. Try again later, or use fewer clients."
            )
        seen = signature(views[0])
        now = time.perf_counter()
        if within_s < math.inf:
            self._check_time(len(rows), now, now + within_s)
        futures: list[asyncio.Future[Served]] = []
        for lane, name, row, view in zip(lanes, names, rows, views, strict=True):
            answered_at = self._answered_at.get(lane)
            think_s = None if answered_at is None else now - answered_at
            futures.append(asyncio.get_running_loop().create_future())
            is_alone = self._suspects.is_alone(name)
            if is_alone:
                self._inferred_alone[row.session] = name
            kind = (seen, self._size(row), lane if is_alone else None)
            waiting = _Waiting(name, row, view, futures[-1], think_s, kind, now + within_s)
            self._waiting[lane] = waiting
            if within_s < math.inf:
                self._urgent[lane] = waiting
            self._kinds.pop(kind, None)
            self._kinds[kind] = None
            self._scheduler.ready(lane, kind, now, None)
            self._closed_loop.came(lane)
        self._metrics.queue_depth = self._scheduler.waiting
        self._pump_soon()
        return futures

    def _size(self, row: Row) -> int | None:
        """Numbers in an action of the row's env; None if unknown."""
        return self._action_size if row.env is None else row.env.action.size

    def end_session(self, session: str) -> None:
        self._inference.end_session(session)
        name = self._inferred_alone.pop(session, None)
        if name is not None:
            self._suspects.acquit(name)

    def forget(self, prefix: str) -> None:
        """Forget the names with this prefix: their rows come no more."""
        self._suspects.forget(prefix)

    @property
    def is_stuck(self) -> bool:
        """True where a call never returned: to close the policy might never return either."""
        return self._inference.is_stuck

    def close(self) -> None:
        """End the threads; what still waits is told."""
        for timer in (self._timer, self._watching):
            if timer is not None:
                timer.cancel()
        self._refuse(PolicyUnavailableError("The server is closing."))
        self._inference.close()

    def _refuse(self, error: PolicyUnavailableError) -> None:
        """Tell all who wait that they will get no answer."""
        for waiting in self._waiting.values():
            if not waiting.future.done():
                waiting.future.set_exception(error)
        self._waiting.clear()
        self._urgent.clear()
        if self._warming is not None and not self._warming.done():
            self._warming.set_exception(error)

    async def _watch(self) -> None:
        """Look for calls that take too long: they wake nobody."""
        while self._hung is None:
            await asyncio.sleep(WATCH_S)
            self._take_answers()

    def _pump_soon(self) -> None:
        # Requests that came in the same turn of the loop are seen together.
        if not self._is_pumping:
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        now = time.perf_counter()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waits_for_clients and not self._scheduler.in_flight and not self._urgent:
            held = self._closed_loop.hold_until(self._scheduler.waiting, now)
            if held is not None:
                self._pump_at(held, now)
                return
        while (plan := self._urgent_plan(now) or self._scheduler.next_batch(now)) is not None:
            waiting = [self._waiting[lane] for lane in plan.lanes]
            number = next(self._job_numbers)
            self._jobs[number] = plan.lanes
            self._due[number] = now + self._scheduler.latency.predict(len(waiting))
            for lane in plan.lanes:
                self._urgent.pop(lane, None)
            self._inference.submit(
                Job(
                    number=number,
                    queue=plan.queue,
                    rows=tuple(one.row for one in waiting),
                    views=[one.view for one in waiting],
                    action_size=self._size(waiting[0].row),
                    expected_s=self._scheduler.latency.predict(len(waiting)),
                )
            )
        wake = self._scheduler.wake_at(now)
        if wake is not None:
            self._pump_at(wake, now)

    def _check_time(self, rows: int, now: float, deadline: float) -> None:
        """Raise TooLate where rows cannot be answered by a deadline, after those that are due
        before."""
        ahead = sum(one.deadline <= deadline for one in self._urgent.values())
        free = now if self._scheduler.has_slot else max(now, min(self._due.values(), default=now))
        ready = free + self._scheduler.latency.predict(min(rows + ahead, self._max_batch))
        if ready > deadline:
            raise TooLate(1e3 * (deadline - now), 1e3 * (ready - now))

    def _urgent_plan(self, now: float) -> BatchPlan | None:
        """The batch of the row that is due first: with others of its kind in the order of their
        deadlines, then of their coming, as many as leave it the time it has."""
        if not self._urgent or not self._scheduler.has_slot:
            return None
        first = min(self._urgent.values(), key=lambda one: one.deadline)
        in_batch = {lane for lanes in self._jobs.values() for lane in lanes}
        alike = [
            lane
            for lane, one in self._waiting.items()
            if one.kind == first.kind and lane not in in_batch
        ]
        alike.sort(key=lambda lane: self._waiting[lane].deadline)
        predict, count = self._scheduler.latency.predict, min(len(alike), self._max_batch)
        while count > 1 and now + predict(count) > first.deadline:
            count -= 1
        return self._scheduler.urgent_batch(alike[:count], first.kind)

    def _pump_at(self, when: float, now: float) -> None:
        wait_s = max(0.0, when - now)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._pump)

    def _take_answers(self) -> None:
        try:
            answers = self._inference.answers()
        except PolicyHungError as hung:
            self._hung = PolicyUnavailableError(f"{hung} Restart the server.")
            _LOG.error("%s", self._hung)
            self._refuse(self._hung)
            return
        for answer in answers:
            if isinstance(answer, Answered):
                self._answered(answer)
                continue
            self._scheduler.seed_latency(answer.latencies)
            if self._warming is not None and not self._warming.done():
                if answer.error is not None:
                    self._warming.set_exception(answer.error)
                else:
                    self._warming.set_result(None)
        self._pump_soon()

    def _answered(self, answer: Answered) -> None:
        now = time.perf_counter()
        lanes = self._jobs.pop(answer.job.number)
        self._due.pop(answer.job.number)
        seconds = answer.ended - answer.began
        if isinstance(answer.errors[0], PolicyHungError):
            self._scheduler.given_up(now, self._inference.concurrency)
        else:
            self._scheduler.inferred(len(lanes), seconds, now)
            self._metrics.inferred(len(lanes), seconds)
        self._blame(answer, lanes)
        for i, lane in enumerate(lanes):
            waiting = self._waiting.pop(lane, None)
            if waiting is None:  # its client is gone
                continue
            self._answered_at[lane] = now
            self._scheduler.leave(lane)
            self._closed_loop.answered(lane, waiting.think_s, seconds, now)
            if not waiting.future.done():
                waiting.future.set_result(
                    Served(
                        chunk=answer.chunks[i],
                        error=answer.errors[i],
                        batch=len(lanes),
                        infer_s=seconds,
                    )
                )
        while len(self._kinds) > MAX_KINDS and self._scheduler.forget(next(iter(self._kinds))):
            del self._kinds[next(iter(self._kinds))]
        self._metrics.queue_depth = self._scheduler.waiting

    def _blame(self, answer: Answered, lanes: Sequence[int]) -> None:
        """Where the policy keeps state, find the row that makes it raise."""
        names = [self._waiting[lane].name for lane in lanes if lane in self._waiting]
        if answer.blameless and not isinstance(answer.errors[0], PolicyHungError):
            self._suspects.add(names)
        elif self._inference.has_sessions and len(answer.job.rows) == 1 and answer.errors[0]:
            for name in names:
                self._suspects.convict(name)
