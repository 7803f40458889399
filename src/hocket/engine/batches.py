"""From ready lanes to batches, and from the policy's answers to the chunks that lanes execute."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hocket.core.contracts.policy import Binds, Policy, Reconnects
from hocket.core.data import UNCHECKED, Observation, RowChecks
from hocket.core.specs import EnvSpec
from hocket.engine.dispatch import Delay, Dispatch, NextChunks, PendingBatch, Rows, noise_seed
from hocket.engine.inferring.inference import Inference
from hocket.engine.inferring.policy_thread import Answered, Job, words
from hocket.engine.inferring.replicas import WarmedUp
from hocket.engine.inferring.row_checks import other_batch
from hocket.engine.scheduling.model import size_to_time, with_stairs
from hocket.engine.scheduling.scheduler import BatchPlan, Patience, Scheduler
from hocket.engine.trials import LaneState
from hocket.errors import PolicyHungError
from hocket.workers.fleet import Fleet

HANDLING_S = 6e-5
HANDLING_ROW_S = 3e-5
"""Seconds that a batch costs beside the policy, and each row of it that another process executes.
They are the engine's own cost, about what `overhead.py` reads on one machine. Without them the
scheduler would think that two small batches of a policy that takes no time are as cheap as one."""
CARRYING_S = 5e-5
"""Seconds that it costs such a process to be given a chunk and to tell what came of it, by the same
reading. Without them lanes of an env that does nothing would seem to come back at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    pad: bool = False
    """Fill every batch to the policy's `max_batch`, so that all have one shape."""
    alone: bool = False
    """Infer every row in a batch of its own."""
    checks: bool = False
    """Infer a few batches again in another order and size, and compare the bits of each row. Not
    for policies that keep state, or whose noise is not the row's alone."""
    keep_observations: bool = False
    """Give back what each row saw."""


class Batches:
    """Joins the scheduler, which decides, with the policy's threads, which infer.

    A policy is bound to a new task, and warmed up for a new signature, only while it is idle; until
    then no batch leaves. Warm-up also tells the scheduler what each batch size costs.
    """

    def __init__(
        self,
        policy: Policy,
        inference: Inference,
        scheduler: Scheduler,
        config: BatchConfig,
        delay: Delay | None = None,
    ) -> None:
        """Without a `delay` lanes wait while the policy thinks."""
        self.scheduler = scheduler
        self.inference = inference
        self.delay = delay or Delay()
        self._policy = policy
        # Asked once: a look for a Protocol's methods costs more than a whole turn.
        self._binds = policy if isinstance(policy, Binds) else None
        flushes = isinstance(policy, Reconnects) and policy.flushes and not self.delay.goes_on
        self._flushed = policy if flushes and isinstance(policy, Reconnects) else None
        self.recalls = self._flushed is not None
        """True if chunks may have to be recalled when their source is gone."""
        self._reconnects = 0
        self._config = config
        self._pad_to = policy.spec.max_batch if config.pad else 0
        self._to_bind: list[EnvSpec] = []
        self._queues: dict[Hashable, int] = {}
        self._whole: dict[int, int] = {}
        """By queue of one lane alone: the shared queue that it was split from."""
        self._cold: dict[Hashable, int] = {}
        """A lane of each queue whose batches were never tried."""
        self._warm: set[Hashable] = set()
        self._is_warming = False
        self._pending: dict[int, PendingBatch] = {}
        self._sizes: tuple[int, ...] = ()
        """Batches that were warmed up."""
        self.checks = UNCHECKED
        """What came of the rows that were inferred again, since it was last taken."""
        self._count = 0
        self._is_at_hand = False
        """Lanes are rows of a simulator in this process."""

    # -- ready lanes ---------------------------------------------------------------------------

    def bind(self, spec: EnvSpec) -> None:
        """Tell the policy of a new task before any row of it is inferred."""
        if self._binds is not None:
            self._to_bind.append(spec)

    def queue(self, kind: Hashable) -> int:
        """The index of the queue in which rows of one kind wait for each other."""
        return self._queues.setdefault(kind, len(self._queues))

    def apart(self, queue: int, lane: int) -> int:
        """The index of a queue like this one, in which the lane waits for nobody else."""
        own = self.queue((queue, lane))
        self._whole[own] = queue
        self._warm.add(own)
        return own

    def together(self, queue: int) -> int:
        """The queue that a lane shares with others, where it waits apart."""
        return self._whole.get(queue, queue)

    def add(self, lanes: NextChunks, now: float) -> None:
        """Let lanes that came at once wait for their next chunks."""
        carrying_s, told = 0.0 if self._is_at_hand else CARRYING_S, set[int]()
        for lane, state, took_s in zip(*lanes[:3], strict=True):
            state.ready_at, queue = now, state.queue
            if queue not in self._warm:
                self._cold.setdefault(queue, lane)
            # Of durations that end at once one of each queue is looked at: they tell much the same.
            if took_s is not None and queue in told:
                took_s = None
            elif took_s is not None:
                took_s += carrying_s
                told.add(queue)
            self.scheduler.ready(lane, queue, now, took_s)

    def patience(self, now: float, longest: float) -> Patience:
        """How long lanes may be waited for, at most `longest` seconds."""
        patience = self.scheduler.patience(now, longest)
        if self._is_warming or (self._pending and (self._to_bind or self._cold)):
            return Patience(longest, awaits_all=patience.awaits_all)
        return patience

    # -- batches that leave --------------------------------------------------------------------

    def leave(self, lanes: Mapping[int, LaneState], fleet: Fleet, now: float) -> Answered | None:
        """Let every batch go that is due; one that is answered at once is the last."""
        if self._is_warming or (self._pending and (self._to_bind or self._cold)):
            return None  # Nothing leaves before the policy has ended what it does.
        if self._to_bind and self._binds is not None:
            for spec in self._to_bind:
                with words():
                    self._binds.bind(spec)
            self._to_bind.clear()
        if self._cold:
            self._warm_up(lanes, fleet)
            return None
        while (plan := self.scheduler.next_batch(now)) is not None:
            if (answer := self._submit(plan, lanes, fleet)) is not None:
                return answer
        return None

    def _warm_up(self, running: Mapping[int, LaneState], fleet: Fleet) -> None:
        queue, lane = self._cold.popitem()
        state = running.get(lane)
        if state is None or state.queue != queue:
            # That lane is lost; the next one of this signature asks again.
            return
        # A check needs a second index, also where one lane alone never makes a batch of two.
        lanes = max(2, fleet.config.lanes) if self._config.checks else fleet.config.lanes
        largest = 1 if self._config.alone else min(self._policy.spec.max_batch, lanes)
        sizes = sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)})
        self._sizes = tuple([1] if self._pad_to else sizes)
        declared = self._policy.spec.batch_sizes
        more = None if self._pad_to else partial(size_to_time, declared=declared)
        self._is_warming = True
        job = self._job(-1, Rows([state]), [state], [lane], fleet, expected_s=0.0)
        self.inference.warm_up(job, self._sizes, more)

    def _submit(
        self, plan: BatchPlan, lanes: Mapping[int, LaneState], fleet: Fleet
    ) -> Answered | None:
        states = [lanes[lane] for lane in plan.lanes]
        rows = Rows(states)
        self._count += 1
        ready_at = [state.ready_at for state in states]
        self._pending[self._count] = PendingBatch(plan.lanes, states, rows, ready_at)
        expected_s = self.scheduler.latency.about(len(states))
        job = self._job(self._count, rows, states, plan.lanes, fleet, expected_s)
        if self._config.checks:
            seed = noise_seed(states[0], states[0].chunk)
            job = job._replace(other=other_batch(len(states), seed, self._sizes))
        answer = self.inference.at_once(job)
        if answer is None:
            self.inference.submit(job)
            if fleet.driven is not None and not self.delay.goes_on:
                # Where lanes go on, nobody holds a step for them.
                fleet.driven.expect(len(states), job.expected_s)
        return answer

    def _job(
        self,
        number: int,
        rows: Rows,
        states: list[LaneState],
        lanes: Sequence[int],
        fleet: Fleet,
        expected_s: float,
    ) -> Job:
        told = self.delay.committed(lanes, states) if self.delay.goes_on else {}
        views, stacked, driven = list[Observation](), None, fleet.driven
        self._is_at_hand = driven is not None
        if driven is not None:
            self.scheduler.share_step(driven.step_s)
            stacked = {**driven.gather(lanes), **told}
        else:
            views = fleet.seen(lanes, rows.chunks)
            if told:
                views = [
                    {**view, **{key: column[row] for key, column in told.items()}}
                    for row, view in enumerate(views)
                ]
        return Job(
            number,
            states[0].queue,
            rows,
            views,
            states[0].action_size,
            stacked,
            self._pad_to,
            self._config.keep_observations,
            expected_s=expected_s,
        )

    # -- answers -------------------------------------------------------------------------------

    def is_under_way(self, state: LaneState) -> bool:
        """True if the policy is asked, or about to be, for a chunk of this attempt."""
        return any(state in batch.states for batch in self._pending.values())

    def warmed_up(self, answer: WarmedUp) -> None:
        """A queue's batches may leave, and what each size costs is known. After an error rows err
        one by one, each with its own trial's name."""
        self._is_warming = False
        self._warm.add(answer.queue)
        self._cold.pop(answer.queue, None)
        if self._config.checks:
            self.checks += answer.checks
        if answer.latencies:
            timed = with_stairs(answer.latencies, self._policy.spec.batch_sizes)
            self.scheduler.seed_latency(
                {rows: took_s + self._handling_s(rows) for rows, took_s in timed.items()}
            )

    def dispatch(self, answer: Answered, running: Mapping[int, LaneState], now: float) -> Dispatch:
        """What is to be done with an answer that has come."""
        if self._config.checks:
            self.checks += answer.checks
        batch = self._pending.pop(answer.job.number)
        size = len(batch.lanes)
        if isinstance(answer.errors[0], PolicyHungError):
            self.scheduler.given_up(now, self.inference.concurrency)
        else:
            took_s = answer.ended - answer.began
            self.scheduler.inferred(size, took_s + self._handling_s(size), now)
        dispatch = self.delay.answered(answer, batch, running, now)
        if dispatch.early:
            self._under_way(dispatch.early, [running[lane] for lane in dispatch.early], now)
        return dispatch

    def take_checks(self) -> RowChecks:
        checks, self.checks = self.checks, UNCHECKED
        return checks

    def _handling_s(self, rows: int) -> float:
        return HANDLING_S + (0.0 if self._is_at_hand else HANDLING_ROW_S * rows)

    def execute(self, dispatch: Dispatch, fleet: Fleet, now: float) -> None:
        """Send lanes their actions."""
        lanes, states = dispatch.lanes, dispatch.states
        attempts, chunks = [state.attempt for state in states], [state.chunk for state in states]
        courses = self.delay.courses(states) if self.delay.goes_on else ()
        fleet.execute(lanes, attempts, chunks, dispatch.actions, courses)
        if not dispatch.is_late:
            self._under_way(lanes, states, now)

    def _under_way(self, lanes: Sequence[int], states: Sequence[LaneState], now: float) -> None:
        """Tell the scheduler that these lanes have their chunks, and will come back."""
        kinds = {state.kind for state in states}
        for kind in kinds:
            pairs = zip(lanes, states, strict=True)
            group = [lane for lane, state in pairs if state.kind == kind]
            self.scheduler.executing(group if len(kinds) > 1 else lanes, kind, now)

    def stale(self) -> Callable[[str], bool] | None:
        """After a reconnect, once: which sources' chunks are to be recalled."""
        if self._flushed is None or self._flushed.reconnects == self._reconnects:
            return None
        self._reconnects = self._flushed.reconnects
        return self._flushed.is_stale
