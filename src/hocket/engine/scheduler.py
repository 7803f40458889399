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

Per lane the work is O(log lanes), per batch O(batch). How many lanes a batch aims at,
`hocket.engine.batch_target` says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import cast

from hocket.engine.batch_target import Aim, SchedulerConfig
from hocket.engine.queues import BatchPlan, Cohort, Kind, Lane, Queue

__all__ = ["Scheduler", "SchedulerConfig"]

PATIENCE = 1.5
"""The oldest ready lane waits at most so many times the median duration of a chunk."""
OVERDUE = 0.25
"""A lane is overdue when it is late by this share of the median duration."""
IMMINENT = 0.03
"""An awaited lane is never expected sooner than in this share of the median duration."""
BRIEF = 0.2
"""Chunks that take at most this share of an inference bring their lanes straight back. Two halves
of them would take turns for good, each inferred while the other waits."""
OVERFULL = 1.25
"""A batch of up to so many times its target is left whole; a larger one may be split."""


class Scheduler:
    """Lanes in, batches out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._lanes: dict[int, Lane] = {}
        self._queues: dict[Hashable, Queue] = {}
        self._kinds: dict[Hashable, Kind] = {}
        self._aim = Aim(config)
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
            raise self._out_of_place(lanes)
        members = cast("list[Lane]", found)
        queues = {lane.queue for lane in members}
        are_ready = any(not queue.ready.keys().isdisjoint(lanes) for queue in queues)
        if are_ready or any({lane.cohort for lane in members}):
            raise self._out_of_place(lanes)
        self._aim.company.sent(len(lanes))
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
            for lane in sent:
                lane.cohort = cohort
                if lane.kind is not chunks:
                    queue.count(lane.kind, -1)
                    queue.count(chunks, 1)
                    lane.kind = chunks

    def _out_of_place(self, lanes: Sequence[int]) -> ValueError:
        for number in lanes:
            lane = self._lanes.get(number)
            if lane is None or lane.cohort is not None or number in lane.queue.ready:
                break
        return ValueError(f"Lane {number} was in no batch; it cannot execute a chunk.")

    def ready(self, lane: int, queue: Hashable, now: float, busy_s: float | None) -> None:
        """An observation came. `busy_s` is how long the chunk took; None after a reset."""
        place = self._queues.get(queue)
        if place is None:
            place = self._queues[queue] = Queue(queue)
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = Lane(place)
            place.members += 1
        elif lane in known.queue.ready:
            raise ValueError(f"Lane {lane} is ready already.")
        else:
            self._stop(known, now, busy_s)
            if known.queue is not place:
                self._move(known, place)
        place.ready[lane] = now

    def ready_together(
        self, lanes: Sequence[int], queue: Hashable, now: float, busy_s: Sequence[float]
    ) -> None:
        """Chunks of many lanes ended at once: what `ready` does for each of them, at a fraction of
        its cost. Of their durations one is looked at."""
        place = self._queues.get(queue)
        if place is None:
            place = self._queues[queue] = Queue(queue)
        found = [*map(self._lanes.get, lanes)]
        cohorts = {lane.cohort if lane and lane.queue is place else None for lane in found}
        if None in cohorts:
            for number, seconds in zip(lanes, busy_s, strict=True):
                self.ready(number, queue, now, seconds)
            return
        members = cast("list[Lane]", found)
        self._count(now, -len(members))
        for cohort in cast("set[Cohort]", cohorts):
            if cohort.late_at is not None:
                count = len(members)
                if len(cohorts) > 1:
                    count = sum(lane.cohort is cohort for lane in members)
                first = bisect_left(place.late_at, cohort.late_at)
                del place.late_at[first : first + count]
        if members:
            # The last is as good as any: what ends at once tells much the same.
            self._learn(members[-1], busy_s[-1], now)
        for lane in members:
            lane.cohort = None
        place.ready.update(dict.fromkeys(lanes, now))

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
            self._aim.company.ended()

    def share_step(self, seconds: float | None) -> None:
        """What a step costs that all lanes share; 0 before the first, None where they do not."""
        self._aim.company.step_s = seconds

    # -- What the policy does --------------------------------------------------------------------

    def seed_latency(self, points: Mapping[int, float]) -> None:
        """What batches of some sizes cost at warm-up, in seconds."""
        self._aim.seed_latency(points)

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
        self._aim.inferred(size, seconds)

    def infer_s(self, size: int) -> float:
        """How long a batch of this size should take."""
        return self._aim.expected_s(size)

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
        """How many lanes must come for `next_batch` to answer differently, if they come within so
        many seconds of the first."""
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
        place = self._queues.get(queue)
        return place.target if place is not None else 1

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
        self._aim.take(
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
        infer_s = self._aim.infer_s
        ready = min(len(queue.ready), self._config.max_batch)
        first = min(ready, ceil(OVERFULL * queue.target))
        rest = ready - first
        second_s = infer_s[first] + infer_s[rest]
        return first if first * infer_s[first] + rest * second_s < ready * infer_s[ready] else ready

    def _pays_to_wait(self, queue: Queue, now: float) -> bool:
        """Is there a number of coming lanes for which waiting costs all of them less time?"""
        here, infer_s = len(queue.ready), self._aim.infer_s
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
        here, infer_s = len(queue.ready), self._aim.infer_s
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

    def _expected_s(self, queue: Queue, place: int, now: float) -> float:
        """In how many seconds the lane at this place in the order of arrival should be ready."""
        typical_s = queue.typical_s
        return max(IMMINENT * typical_s, queue.late_at[place] - OVERDUE * typical_s - now)

    # -- Book-keeping ----------------------------------------------------------------------------

    def _stop(self, lane: Lane, now: float, busy_s: float | None) -> None:
        if lane.cohort is None:
            return
        self._expect_no_more(lane.queue, lane.cohort)
        self._count(now, -1)
        if busy_s is not None:
            self._learn(lane, busy_s, now)
        lane.cohort = None

    def _learn(self, lane: Lane, busy_s: float, now: float) -> None:
        """A chunk of this lane took so long."""
        kind, cohort = lane.kind, lane.cohort
        if kind is None or cohort is None:
            return
        usual_s = kind.seconds.value
        if usual_s and now > cohort.started:
            load = (self._lane_seconds - cohort.lane_seconds) / (now - cohort.started)
            self._aim.contention.observe(load, busy_s / usual_s)
        kind.seconds.add(busy_s)
        lane.queue.seconds.add(busy_s)

    def _move(self, lane: Lane, queue: Queue) -> None:
        """The lane's observations have another signature now (its next trial's suite)."""
        for place, change in ((lane.queue, -1), (queue, 1)):
            place.members += change
            place.count(lane.kind, change)
        lane.queue = queue

    def _expect_no_more(self, queue: Queue, cohort: Cohort) -> None:
        if cohort.late_at is not None:
            del queue.late_at[bisect_left(queue.late_at, cohort.late_at)]

    def _count(self, now: float, change: int) -> None:
        self._lane_seconds += self._executing * (now - self._counted_at)
        self._counted_at = now
        self._executing += change
