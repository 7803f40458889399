"""Decides who is in the next batch and when it leaves. No clock, no thread, no socket: lanes come
in, batches go out, and time is an argument (any clock that never falls, in seconds).

When a policy slot is free, a batch leaves as soon as, in one ready queue,

- the ready lanes reach the target that the cycle model gives (see `hocket.engine.model`), which
  they are waited for as long as that costs nobody anything, or
- no lane is awaited any more, or the oldest has waited 1.5 times what a chunk takes, counted from
  when the slot was free, or
- waiting does not pay. The lanes that execute are expected a median duration after they began. To
  wait for the next few of them holds the ready ones up; to leave without them costs a second
  inference, which they wait for. Whatever costs the lanes less time in all is done; where chunks
  are far shorter than an inference, whatever costs the policy less time. Where several
  signatures share one policy, a small batch lets a larger one pass that is about to be ready.

Rows of one simulator share a step. Where being out of step costs them more than it saves (see
`hocket.workers.rows.stepping`), they stay together: a batch leaves when all are ready or overdue.

Awaited are lanes that execute a chunk and are not overdue. A lane in reset, build or replacement
has left and is awaited by nobody. Lanes that nothing is known of (a server's connections: `ready`
and `leave` only) are not awaited either, and leave as soon as a slot is free.

Per lane the work is O(log lanes), per batch O(batch).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, inf
from typing import NamedTuple, cast

from hocket.core.estimates import Contention, Latency, RunningMedian
from hocket.engine.model import NEAR_BEST, LatencyOf, Work, cycle_s, spare_s, target_batch
from hocket.workers.rows.stepping import WINDOW, Rhythm

# All of these were chosen by hand, on the settings of `benchmarks/scheduling_simulation.py`. What
# other values lose there is lost of the chunks per second that the value here gives (three seeds).
PATIENCE = 1.5
"""The oldest ready lane waits at most this many times the median duration of a chunk. With 0.5 the
settings with very short chunks lose up to 18 %; without any limit no setting loses more than 0.4 %,
but a lane that never comes back must not be waited for."""
OVERDUE = 0.25
"""A lane is overdue when it is late by this share of the median duration. With 0 a flat policy and
very short chunks lose up to 10 %; with 1 heavy-tailed chunks lose 2 %."""
IMMINENT = 0.03
"""An awaited lane is never expected sooner than in this share of the median duration. With 0 and
long chunks, some heavy-tailed, 3 % are lost; with 0.3 a flat policy loses 20 %."""
BRIEF = 0.2
"""Chunks that take at most this share of an inference bring their lanes straight back. Two halves
of them would take turns for good, each inferred while the other waits: with 0 the settings with
very short chunks lose up to 17 %. With 0.6 short chunks lose 1 %."""
OVERFULL = 1.25
"""A batch of up to this many times its target is left whole; a larger one may be split. Short
chunks lose 3 % with 1, and the tail of a run of 40 trials as much where nothing is split."""
RECHECK = 16
RECHECK_S = 0.05
"""Batches and seconds after which the model is asked again, even where lanes stayed the same. After
200 batches only, the settings with very short chunks lose up to 13 %. The model costs more than a
small batch: the seconds bound what brief policies pay, and change no setting by more than 0.4 %."""
SLICE_S = 1e-3
"""Seconds, about, that a core gives to one process before the next. Shorter chunks do not slow each
other down where they compete for it: they queue, which their own time does not show. No setting is
that short; `overhead.py` at 8 lanes is."""
MOVED = 0.1
"""Share of the lanes that must come or go for the model to be asked again at once; one alone, whose
episode has ended, comes and goes too often. With 1, very short chunks with resets of 2 s lose 3 %;
with 0, very short chunks on 2 cores lose 1 %."""
KIND_WINDOW = 31
QUEUE_WINDOW = 127
"""Chunks whose median duration is that of a kind, and of a queue. With 5 and 15 very short chunks
on 2 cores lose 4 to 5 %; with 127 and 1023, where what is learnt is old, up to 1 and 3 %."""


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


class Scheduler:
    """Lanes in, batches out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._lanes: dict[int, WaitingLane] = {}
        self._queues: dict[Hashable, Queue] = {}
        self._kinds: dict[Hashable, Kind] = {}
        self._target = BatchTarget(config)
        self._executing = 0
        self._lane_seconds = 0.0
        """Integral of `_executing` over time, up to `_counted_at`."""
        self._counted_at = 0.0
        self._in_flight = 0
        self._free_since = 0.0
        """When a slot was last given back."""
        self._batches = 0

    # -- What happens to lanes -------------------------------------------------------------------

    def executing(self, lanes: Sequence[int], kind: Hashable, now: float) -> None:
        """Chunks were just sent to these lanes. `kind` is what their duration depends on."""
        chunks = self._kinds.get(kind)
        if chunks is None:
            chunks = self._kinds[kind] = Kind()
        found = [*map(self._lanes.get, lanes)]
        if not all(found):
            raise self._in_no_batch(lanes)
        members = cast("list[WaitingLane]", found)
        queues = {member.queue for member in members}
        are_ready = any(not queue.ready.keys().isdisjoint(lanes) for queue in queues)
        if are_ready or any({member.cohort for member in members}):
            raise self._in_no_batch(lanes)
        self._target.lockstep.sent(len(lanes))
        self._count(now, len(lanes))
        for queue in queues:
            sent = members if len(queues) == 1 else [m for m in members if m.queue is queue]
            usual_s, late_at = chunks.seconds.value, None
            expected_s = queue.seconds.value if usual_s is None else usual_s
            if expected_s is not None:
                late_at = now + expected_s + OVERDUE * queue.typical_s
                first = bisect_left(queue.late_at, late_at)
                queue.late_at[first:first] = [late_at] * len(sent)
            cohort = Cohort(now, self._lane_seconds, late_at)
            for member in sent:
                member.cohort = cohort
                if member.kind is not chunks:
                    queue.count(member.kind, -1)
                    queue.count(chunks, 1)
                    member.kind = chunks

    def _in_no_batch(self, lanes: Sequence[int]) -> ValueError:
        for lane in lanes:
            known = self._lanes.get(lane)
            if known is None or known.cohort is not None or lane in known.queue.ready:
                break
        return ValueError(f"Lane {lane} was in no batch; it cannot execute a chunk.")

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        """An observation came. `busy_s` is how long the chunk took; None after a reset."""
        own = self._queues.get(queue)
        if own is None:
            own = self._queues[queue] = Queue(queue)
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = WaitingLane(own)
            own.members += 1
        elif lane in known.queue.ready:
            raise ValueError(f"Lane {lane} is ready already.")
        else:
            self._stop(known, now, busy_s)
            if known.queue is not own:
                self._move(known, own)
        own.ready[lane] = now

    def ready_together(
        self, lanes: Sequence[int], queue: Hashable, now: float, busy_s: Sequence[float]
    ) -> None:
        """Chunks of many lanes ended at once: what `ready` does for each of them, at a fraction of
        its cost. Of their durations one is looked at."""
        own = self._queues.get(queue)
        if own is None:
            own = self._queues[queue] = Queue(queue)
        found = [*map(self._lanes.get, lanes)]
        cohorts = {known.cohort if known and known.queue is own else None for known in found}
        if None in cohorts:
            for lane, seconds in zip(lanes, busy_s, strict=True):
                self.ready(lane, queue, now, seconds)
            return
        members = cast("list[WaitingLane]", found)
        self._count(now, -len(members))
        for cohort in cast("set[Cohort]", cohorts):
            if cohort.late_at is not None:
                count = len(members)
                if len(cohorts) > 1:
                    count = sum(member.cohort is cohort for member in members)
                first = bisect_left(own.late_at, cohort.late_at)
                del own.late_at[first : first + count]
        if members:
            # The last is as good as any: what ends at once tells much the same.
            self._learn(members[-1], busy_s[-1], now)
        for member in members:
            member.cohort = None
        own.ready.update(dict.fromkeys(lanes, now))

    def leave(self, lane: int) -> None:
        """The lane is in reset, build or replacement, has ended or is gone: nobody awaits it."""
        known = self._lanes.pop(lane, None)
        if known is None:
            return
        known.queue.ready.pop(lane, None)
        known.queue.members -= 1
        known.queue.count(known.kind, -1)
        if known.cohort is not None:
            self._expect_no_more(known.queue, known.cohort)
            self._executing -= 1
            self._target.lockstep.ended()

    def forget(self, queue: Hashable) -> bool:
        """Drop what is known of a queue; False where it still has lanes."""
        own = self._queues.get(queue)
        if own is not None and own.members:
            return False
        self._queues.pop(queue, None)
        return True

    def share_step(self, seconds: float | None) -> None:
        """Seconds of the step that all lanes share; 0 before the first, None without one."""
        self._target.lockstep.step_s = seconds

    # -- What the policy does --------------------------------------------------------------------

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        self._target.seed_latency(points)

    def next_batch(self, now: float) -> BatchPlan | None:
        """Take a batch out of its queue, and a policy slot; None if nothing should leave now."""
        if self._in_flight >= self._config.concurrency:
            return None
        chosen: Queue | None = None
        for queue in self._queues.values():
            # Between queues the one whose oldest lane waits longest goes first: none starves.
            is_older = queue.ready and (chosen is None or queue.oldest < chosen.oldest)
            if is_older and self._leaves(queue, now):
                chosen = queue
        if chosen is None:
            return None
        lanes = chosen.take(self._size(chosen))
        self._in_flight += 1
        self._batches += 1
        return BatchPlan(lanes=lanes, queue=chosen.key)

    def inferred(self, size: int, seconds: float, now: float) -> None:
        """A batch is back: a slot is free again, and this is what it cost."""
        if self._in_flight == 0:
            raise ValueError("No batch is in flight.")
        self._in_flight -= 1
        self._free_since = now
        self._target.inferred(size, seconds)

    def given_up(self, now: float, slots: int) -> None:
        """A batch will not come back; from now on `slots` inferences may run at once."""
        self._in_flight -= 1
        self._free_since = now
        self._config = replace(self._config, concurrency=max(1, slots))
        self._target.limit(self._config)

    def infer_s(self, size: int) -> float:
        """How long a batch of this size should take."""
        return self._target.expected_s(size)

    def wake_at(self, now: float) -> float | None:
        """When `next_batch` may answer differently though nothing happens; None if never."""
        if self._in_flight >= self._config.concurrency:
            return None
        queues = self._queues.values()
        if not any(queue.ready for queue in queues):
            return None
        waiting = [queue for queue in queues if queue.ready and not queue.is_together]
        times = [self._patient_until(queue) for queue in waiting]
        times += [spare for queue in waiting if (spare := self._spare_until(queue)) > now]
        # As time goes on, waiting pays ever more, until a lane is overdue: of any queue, since a
        # batch may have let another queue's pass.
        for queue in queues:
            coming = bisect_right(queue.late_at, now)
            if coming < len(queue.late_at):
                times.append(queue.late_at[coming])
        return max(now, min(times)) if times else None

    def wanted(self, now: float) -> tuple[int, float]:
        """How many lanes must come for `next_batch` to answer differently, and within how many
        seconds of the first of them."""
        if len(self._queues) != 1 or self._in_flight >= self._config.concurrency:
            return 1, 0.0
        (queue,) = self._queues.values()
        left_s = queue.spare_s
        if queue.ready:
            left_s = self._spare_until(queue) - now
        if queue.is_together or left_s <= 0:
            return 1, 0.0
        return max(1, min(queue.target - len(queue.ready), self._executing)), left_s

    @property
    def awaits_all(self) -> bool:
        """Whether no batch leaves before all lanes are ready, or overdue."""
        return self._in_flight == 0 and all(queue.is_together for queue in self._queues.values())

    # -- For display -----------------------------------------------------------------------------

    def target(self, queue: Hashable) -> int:
        """How many lanes a batch of this queue waits for, if that pays."""
        own = self._queues.get(queue)
        return own.target if own is not None else 1

    @property
    def waiting(self) -> int:
        """Lanes that are ready and in no batch."""
        return sum(len(queue.ready) for queue in self._queues.values())

    @property
    def in_flight(self) -> int:
        """Batches that are being inferred."""
        return self._in_flight

    # -- When a batch leaves ---------------------------------------------------------------------

    def _leaves(self, queue: Queue, now: float) -> bool:
        self._target.update(
            queue,
            self._queues.values(),
            now,
            lanes=len(self._lanes),
            batches=self._batches,
            has_executed=bool(self._kinds),
        )
        if queue.is_together:
            return not self._is_awaiting(queue, now)
        if len(queue.ready) >= queue.target:
            return True
        if self._executing and now < self._spare_until(queue):
            return False
        return self._patient_until(queue) <= now or not (
            self._pays_to_wait(queue, now) or self._pays_to_give_way(queue, now)
        )

    def _is_awaiting(self, queue: Queue, now: float) -> bool:
        """Does any lane execute that is not overdue? Before anything is known, none is."""
        if queue.seconds.value is None:
            return self._executing > 0
        return bool(queue.late_at) and queue.late_at[-1] > now

    def _patient_until(self, queue: Queue) -> float:
        """Time that a lane spent waiting for a slot says nothing about who else is coming: with
        an inference longer than a chunk, whoever just missed a batch would always go alone."""
        return max(queue.oldest, self._free_since) + PATIENCE * queue.typical_s

    def _spare_until(self, queue: Queue) -> float:
        return max(queue.oldest, self._free_since) + queue.spare_s

    def _size(self, queue: Queue) -> int:
        """All that are ready, or the target of them where two batches cost all of them less."""
        infer_s = self._target.infer_s
        ready = min(len(queue.ready), self._config.max_batch)
        first = min(ready, ceil(OVERFULL * queue.target))
        rest = ready - first
        second_s = infer_s[first] + infer_s[rest]
        return first if first * infer_s[first] + rest * second_s < ready * infer_s[ready] else ready

    def _pays_to_wait(self, queue: Queue, now: float) -> bool:
        """Is there a number of coming lanes for which waiting costs all of them less time?"""
        here, infer_s = len(queue.ready), self._target.infer_s
        alone_s = infer_s[here]
        is_last_slot = self._config.concurrency - self._in_flight == 1
        are_brief = is_last_slot and queue.typical_s <= BRIEF * alone_s
        late_at, coming = queue.late_at, bisect_right(queue.late_at, now)
        more = min(queue.target - here, len(late_at) - coming)
        while more > 0:
            wait_s = self._expected_s(queue, coming + more - 1, now)
            together_s = wait_s + infer_s[here + more]
            # Apart, those who come later find the slot taken, unless there is another one.
            apart_s = (max(wait_s, alone_s) if is_last_slot else wait_s) + infer_s[more]
            if here * (together_s - alone_s) < more * (apart_s - together_s):
                return True
            # The wait is paid once; lanes that come straight back stay together ever after.
            if are_brief and together_s < alone_s + infer_s[more]:
                return True
            more //= 2
        return False

    def _pays_to_give_way(self, queue: Queue, now: float) -> bool:
        """Is a larger batch of another signature so near that it had better go first?"""
        if len(self._queues) == 1 or self._config.concurrency - self._in_flight > 1:
            return False
        here, infer_s = len(queue.ready), self._target.infer_s
        alone_s = infer_s[here]
        for other in self._queues.values():
            coming = bisect_right(other.late_at, now)
            more = min(other.target - len(other.ready), len(other.late_at) - coming)
            while other is not queue and more > 0:
                wait_s = self._expected_s(other, coming + more - 1, now)
                size = more + len(other.ready)
                if here * (wait_s + infer_s[size]) < size * (alone_s - wait_s):
                    return True
                more //= 2
        return False

    def _expected_s(self, queue: Queue, index: int, now: float) -> float:
        """Seconds until the lane at this index in the order of arrival should be ready."""
        typical_s = queue.typical_s
        return max(IMMINENT * typical_s, queue.late_at[index] - OVERDUE * typical_s - now)

    # -- Book-keeping ----------------------------------------------------------------------------

    def _stop(self, lane: WaitingLane, now: float, busy_s: float | None) -> None:
        if lane.cohort is None:
            return
        self._expect_no_more(lane.queue, lane.cohort)
        self._count(now, -1)
        if busy_s is not None:
            self._learn(lane, busy_s, now)
        lane.cohort = None

    def _learn(self, lane: WaitingLane, busy_s: float, now: float) -> None:
        """Learn from a chunk of this lane, which took `busy_s` seconds."""
        kind, cohort = lane.kind, lane.cohort
        if kind is None or cohort is None:
            return
        usual_s = kind.seconds.value
        if usual_s and now > cohort.started:
            load = (self._lane_seconds - cohort.lane_seconds) / (now - cohort.started)
            self._target.contention.observe(load, busy_s / usual_s)
        kind.seconds.add(busy_s)
        lane.queue.seconds.add(busy_s)

    def _move(self, lane: WaitingLane, queue: Queue) -> None:
        """The lane's observations have another signature now (its next trial's suite)."""
        for either, change in ((lane.queue, -1), (queue, 1)):
            either.members += change
            either.count(lane.kind, change)
        lane.queue = queue

    def _expect_no_more(self, queue: Queue, cohort: Cohort) -> None:
        if cohort.late_at is not None:
            del queue.late_at[bisect_left(queue.late_at, cohort.late_at)]

    def _count(self, now: float, change: int) -> None:
        self._lane_seconds += self._executing * (now - self._counted_at)
        self._counted_at = now
        self._executing += change


class BatchTarget:
    """Sets how many lanes a batch of each queue waits for, by the cycle model and what inferences
    and chunks were seen to take. The model is asked again only when what it was told may have
    moved."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._latency = Latency()
        self._check_at = (0, -inf)
        """From which batch on, and when, the model is asked again."""
        self.infer_s: list[float] = [0.0]
        """The latency of every size that lanes can make, as of the last check."""
        self.contention = Contention(config.cores)
        self.lockstep = Lockstep()

    def limit(self, config: SchedulerConfig) -> None:
        """Keep to another configuration from now on."""
        self._config = config
        self._check_at = (0, -inf)

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        for size, seconds in points.items():
            self._latency.seed(size, seconds)
        self._check_at = (0, -inf)

    def inferred(self, size: int, seconds: float) -> None:
        """Learn what a batch cost."""
        self._latency.observe(size, seconds)
        if self.lockstep.step_s is not None:
            self.lockstep.inferred(seconds - self.expected_s(size))

    def expected_s(self, size: int) -> float:
        """How long a batch of this size should take."""
        return self.infer_s[min(size, len(self.infer_s) - 1)]

    def update(
        self,
        queue: Queue,
        queues: Iterable[Queue],
        now: float,
        *,
        lanes: int,
        batches: int,
        has_executed: bool,
    ) -> None:
        """Bring the queue's target up to date. `lanes` are in all queues together, `batches` have
        left, and `has_executed` says whether lanes ever executed a chunk."""
        sizes = max(len(self.infer_s), min(self._config.max_batch, lanes) + 1)
        batch, at = self._check_at
        if (batches >= batch and now >= at) or sizes > len(self.infer_s):
            # Whether rows stay together is seen early, and a run may be short.
            is_early = self.lockstep.step_s is not None and batches < RECHECK
            more = max(1, batches) if is_early else RECHECK
            self._check_at = (batches + more, now + RECHECK_S)
            self.infer_s = [0.0, *map(self._latency.predict, range(1, sizes))]
            for each in queues:
                each.members_at_target = -1
        moved = abs(queue.members - queue.members_at_target)
        if queue.members_at_target < 0 or moved > max(1, MOVED * queue.members_at_target):
            queue.members_at_target = queue.members
            if queue.seconds.value is None:
                is_server = batches > self._config.concurrency and not has_executed
                queue.target = self._first_target(queue, lanes, is_server=is_server)
            else:
                queue.target = self._target(queue, lanes, queue.seconds.value)

    def _first_target(self, queue: Queue, lanes: int, *, is_server: bool) -> int:
        """The target before anything is known. If lanes will execute, one cohort more than can be
        inferred at once is the least that keeps all busy; a server's connections just go."""
        queue.is_together = self._may_be_together(queue, lanes) and self.lockstep.pays_at_first(
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
        lanes_that_count = self._lanes_by_frequency(queue, seconds)
        target = target_batch(lanes_that_count, work, self._latency.predict)
        queue.spare_s = spare_s(target, lanes_that_count, work, self._latency.predict)
        queue.is_together = self._may_be_together(queue, lanes) and self.lockstep.pays(
            queue.members, target, work, self._latency.predict, are_together=queue.is_together
        )
        return queue.members if queue.is_together else target

    def _may_be_together(self, queue: Queue, lanes: int) -> bool:
        fits = 1 < queue.members <= self._config.max_batch
        return fits and queue.members == lanes and self._config.concurrency == 1

    def _lanes_by_frequency(self, queue: Queue, seconds: float) -> int:
        """The number of lanes, each counted by how often it comes: one that records video comes
        seldom."""
        infer_s = self.infer_s[queue.target]
        count = float(queue.members - sum(queue.kinds.values()))
        for kind, lanes in queue.kinds.items():
            usual_s = max(seconds, kind.seconds.value or seconds)
            count += lanes * (seconds + infer_s) / (usual_s + infer_s)
        return max(1, round(count))


class Lockstep:
    """Whether rows that share a step are inferred in one batch, or part.

    Where an inference of all takes no longer than one of half, rows that stay in step lose only
    what they wait for each other's ends; rows that part wait for the ends of each other's steps
    instead (`hocket.workers.rows.stepping.Rhythm` weighs one against the other).
    """

    def __init__(self) -> None:
        self.step_s: float | None = None
        """Seconds of the step that all lanes share; 0 before the first, None without one."""
        self._chunks = self._ends = 0
        self._spread = RunningMedian(WINDOW)

    def sent(self, chunks: int) -> None:
        """Count `chunks` chunks that were sent."""
        self._chunks += chunks

    def ended(self) -> None:
        """Count a chunk in which an episode ended."""
        self._ends += 1

    def inferred(self, off_s: float) -> None:
        """Learn that an inference took `off_s` seconds more or less than was expected."""
        self._spread.add(abs(off_s))

    def pays_at_first(self, members: int, infer_s: LatencyOf) -> bool:
        """Whether lanes begin in one batch, while nothing is known but what inferences cost. They
        do where a batch of all takes no longer than one of half."""
        if self.step_s is None:
            return False
        return infer_s(members) * NEAR_BEST <= infer_s(ceil(members / 2))

    def pays(
        self, members: int, target: int, work: Work, infer_s: LatencyOf, *, are_together: bool
    ) -> bool:
        """Whether one batch of all `members` lanes costs them less than batches of `target`."""
        if not self.step_s:
            return False
        parted = ceil(members / max(2, round(members / target)))
        rhythm = Rhythm(
            execute_s=work.execute_s,
            infer_s=infer_s(parted),
            spread_s=self._spread.value or 0.0,
            step_s=self.step_s,
            ends=self._ends / max(1, self._chunks),
        )
        whole_s = cycle_s(members, members, work, infer_s)
        gained_s = max(0.0, NEAR_BEST * whole_s - cycle_s(parted, members, work, infer_s))
        return rhythm.keeps_together(are_together=are_together, gained_s=gained_s)


class BatchPlan(NamedTuple):
    """The lanes of one batch, oldest first, all of one queue."""

    lanes: tuple[int, ...]
    queue: Hashable


class Queue:
    """Ready lanes of one signature, oldest first, and those that will come back to it."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.ready: dict[int, float] = {}
        """Lane to the time since when it is ready. Dicts keep order, and removal is O(1)."""
        self.late_at: list[float] = []
        """When each executing lane is overdue, sorted."""
        self.seconds = RunningMedian(QUEUE_WINDOW)
        """How long chunks took, whatever their kind: those that come often count often."""
        self.kinds: dict[Kind, int] = {}
        """How many lanes had a last chunk of each kind."""
        self.members = 0
        """Lanes whose last observation was of this signature and that have not left."""
        self.target = 1
        self.members_at_target = -1
        """For how many the target was computed; -1: it is to be computed again."""
        self.spare_s = 0.0
        """For how long a batch may be held back at nobody's cost."""
        self.is_together = False
        """All members go in one batch, as rows do that had better stay in step."""

    @property
    def oldest(self) -> float:
        return next(iter(self.ready.values()))

    @property
    def typical_s(self) -> float:
        return self.seconds.value or 0.0

    def take(self, count: int) -> tuple[int, ...]:
        """Take the first `count` lanes out of those that are ready."""
        if count == len(self.ready):
            lanes = tuple(self.ready)
            self.ready.clear()
            return lanes
        lanes = tuple(islice(self.ready, count))
        for lane in lanes:
            del self.ready[lane]
        return lanes

    def count(self, kind: Kind | None, change: int) -> None:
        if kind is not None:
            self.kinds[kind] = self.kinds.get(kind, 0) + change


class Kind:
    """Chunks that should take about the same time."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = RunningMedian(KIND_WINDOW)


class Cohort:
    """Chunks that were sent at once to lanes of one queue."""

    __slots__ = ("lane_seconds", "late_at", "started")

    def __init__(self, started: float, lane_seconds: float, late_at: float | None) -> None:
        self.started = started
        self.lane_seconds = lane_seconds
        """Seconds that all lanes together had executed by then."""
        self.late_at = late_at
        """When these lanes are overdue; None where nothing is known."""


class WaitingLane:
    """A lane as the scheduler knows it: its queue, and what it did last."""

    __slots__ = ("cohort", "kind", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.kind: Kind | None = None
        self.cohort: Cohort | None = None
        """What its running chunk was sent with; None while it runs none."""
