"""Every scheduling rule, without sleeping: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hocket.engine.scheduling.scheduler import BatchPlan, Scheduler, SchedulerConfig
from hocket.engine.scheduling.value import LATE

SIZES = (1, 2, 4, 8, 16, 32, 64)


def scheduler(*, concurrency: int = 1, max_batch: int = 64, base_s: float = 0.075) -> Scheduler:
    made = Scheduler(SchedulerConfig(cores=64, max_batch=max_batch, concurrency=concurrency))
    made.seed_latency({size: base_s + 0.0085 * size for size in SIZES})
    return made


def cycle(
    made: Scheduler, lanes: range, now: float, *, busy_s: float = 0.16, queue: Hashable = "q"
) -> float:
    """All lanes in one round: ready at once, inferred in whatever batches, executed."""
    for lane in lanes:
        made.ready(lane, queue, now, None)
    while (batch := made.next_batch(now)) is not None:
        now += 0.2
        made.inferred(len(batch.lanes), 0.075 + 0.0085 * len(batch.lanes), now)
        made.executing(batch.lanes, "kind", now)
    for lane in lanes:
        made.ready(lane, queue, now + busy_s, busy_s)
    now += busy_s
    while (batch := made.next_batch(now)) is not None:
        made.inferred(len(batch.lanes), 0.075 + 0.0085 * len(batch.lanes), now)
    return now


def batch_at(made: Scheduler, now: float) -> BatchPlan:
    """The batch that leaves at this time."""
    batch = made.next_batch(now)
    assert batch is not None
    return batch


def leaves(made: Scheduler, now: float) -> tuple[BatchPlan, float]:
    """The next batch where nothing else happens, and when it leaves."""
    while (batch := made.next_batch(now)) is None:
        wake = made.wake_at(now)
        assert wake is not None
        assert wake > now
        now = wake
    return batch, now


def short_chunks() -> tuple[Scheduler, float]:
    """Eight lanes on two cores, whose chunks take less time than what a batch of them costs; all
    execute now."""
    config = SchedulerConfig(cores=2)
    made = Scheduler(config)
    made.seed_latency({size: 6e-5 + 3e-5 * size for size in SIZES})
    now = 0.0
    for busy_s in (None, *[9e-5] * 40):
        for lane in range(8):
            made.ready(lane, "q", now, busy_s)
        while made.waiting:
            now += 0.01  # Nobody is waited for so long.
            batch = batch_at(made, now)
            made.inferred(len(batch.lanes), 6e-5 + 3e-5 * len(batch.lanes), now)
            made.executing(batch.lanes, "kind", now)
    return made, now


def test_lanes_that_come_back_sooner_than_they_are_handled_are_gathered() -> None:
    made, now = short_chunks()
    for lane in (0, 1, 2):
        made.ready(lane, "q", now + 1e-4, 9e-5)
        assert made.next_batch(now + 1e-4) is None
    _, wanted, left_s, _ = made.patience(now + 1.2e-4, 1.0)
    assert wanted == 1
    wake_at = made.wake_at(now + 1.2e-4)
    assert wake_at is not None
    assert wake_at <= now + 1.2e-4 + left_s
    made.ready(3, "q", now + 1.3e-4, 9e-5)
    batch = batch_at(made, now + 1.3e-4)
    assert batch.lanes == (0, 1, 2, 3)


def test_lanes_are_gathered_no_longer_than_that_is_free() -> None:
    made, now = short_chunks()
    made.ready(0, "q", now + 1e-4, 9e-5)
    assert made.next_batch(now + 1e-4) is None
    _, wanted, left_s, _ = made.patience(now + 1e-4, 1.0)
    assert wanted == 3
    assert 0 < left_s < 1e-3
    assert made.patience(now + 1e-4 + left_s, 1.0)[1:3] == (1, 0.0)
    batch = batch_at(made, now + 2e-4 + left_s)
    assert batch.lanes == (0,)


def test_who_comes_next_may_change_everything_where_waiting_costs_something() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    made.ready(0, "q", now + 0.16, 0.16)
    assert made.patience(now + 0.16, 1.0)[1:3] == (1, 0.0)


def test_nothing_leaves_when_nothing_is_ready() -> None:
    made = scheduler()
    assert made.next_batch(0.0) is None
    assert made.wake_at(0.0) is None
    assert (made.waiting, made.in_flight) == (0, 0)


def test_a_lone_lane_leaves_at_once() -> None:
    made = scheduler()
    made.ready(7, "q", 1.0, None)
    assert made.next_batch(1.0) == BatchPlan(lanes=(7,), queue="q")
    assert made.in_flight == 1


def test_batch_waits_for_lanes_about_to_come_and_leaves_with_them() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    made.ready(0, "q", now + 0.16, 0.16)
    assert made.next_batch(now + 0.16) is None, "three more come any moment"
    for lane in (1, 2, 3):
        made.ready(lane, "q", now + 0.165, 0.165)
    batch = batch_at(made, now + 0.165)
    assert batch.lanes[0] == 0


def test_halves_that_come_straight_back_become_one_batch() -> None:
    made = scheduler()
    now = cycle(made, range(32), 0.0, busy_s=0.002)
    made.executing(range(16), "kind", now)
    for lane in range(16, 32):
        made.ready(lane, "q", now, None)
    assert made.next_batch(now) is None, "the other half is back in 2 ms"
    for lane in range(16):
        made.ready(lane, "q", now + 0.002, 0.002)
    batch = batch_at(made, now + 0.002)
    assert sorted(batch.lanes) == list(range(32))


def test_lanes_that_come_much_later_are_not_waited_for() -> None:
    made = scheduler()
    now = cycle(made, range(4), 0.0, busy_s=1.0)
    made.executing([0], "kind", now)
    made.executing([1, 2, 3], "kind", now + 0.9)
    made.ready(0, "q", now + 1.0, 1.0)
    assert made.next_batch(now + 1.0) == BatchPlan(lanes=(0,), queue="q")


def test_overdue_lanes_are_not_awaited() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    made.ready(0, "q", now + 0.16, 0.16)
    assert made.next_batch(now + 0.16) is None
    wake = made.wake_at(now + 0.16)
    assert wake is not None
    assert now + 0.16 < wake
    batch, left_at = leaves(made, now + 0.16)
    assert batch.lanes == (0,)
    assert left_at <= now + LATE * 0.16 + 1e-4


def test_lanes_that_never_come_are_awaited_until_the_last_of_them_is_overdue() -> None:
    made = scheduler(base_s=1.0)
    now = cycle(made, range(12), 0.0)
    made.executing(range(6), "kind", now)
    now += 0.16
    made.ready(0, "q", now, 0.16)
    assert made.next_batch(now) is None
    made.executing(range(6, 12), "kind", now + 0.1)
    batch, left_at = leaves(made, now + 0.1)
    assert batch.lanes == (0,)
    assert left_at <= now + 0.1 + LATE * 0.16 + 1e-4


def test_lanes_that_left_are_not_awaited() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    made.ready(0, "q", now + 0.16, 0.16)
    assert made.next_batch(now + 0.16) is None
    for lane in (1, 2, 3):
        made.leave(lane)
    assert made.next_batch(now + 0.16) == BatchPlan(lanes=(0,), queue="q")


def test_lanes_in_reset_are_awaited_by_how_long_resets_took() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)

    def three_are_reset(ends_at: float) -> None:
        made.executing([0, 1, 2, 3], "kind", ends_at - 0.16)
        for lane in (1, 2, 3):
            made.leave(lane)
            made.begins(lane, ends_at)
        made.ready(0, "q", ends_at, 0.16)

    three_are_reset(now + 0.16)
    for lane in (1, 2, 3):
        made.ready(lane, "q", now + 0.17, None)
    batch, now = leaves(made, now + 0.17)
    assert len(batch.lanes) == 4
    made.inferred(4, 0.2, now + 0.2)

    three_are_reset(now + 0.36)
    assert made.next_batch(now + 0.36) is None, "three more are reset in 10 ms"
    batch, left_at = leaves(made, now + 0.36)
    assert batch.lanes == (0,), "they never come"
    assert left_at <= now + 0.36 + LATE * 0.01 + 1e-4


def test_rows_of_one_simulator_do_not_wait_for_resets() -> None:
    made = scheduler(base_s=0.15)
    made.share_step(0.01)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    for lane in (1, 2, 3):
        made.leave(lane)
        made.begins(lane, now + 0.16)
    made.ready(0, "q", now + 0.16, 0.16)
    assert made.next_batch(now + 0.16) == BatchPlan(lanes=(0,), queue="q")


def test_a_lane_that_leaves_is_taken_out_of_its_queue() -> None:
    made = scheduler()
    made.ready(0, "q", 0.0, None)
    made.ready(1, "q", 0.0, None)
    made.leave(0)
    made.leave(0)
    made.leave(99)
    assert made.waiting == 1
    assert made.next_batch(0.0) == BatchPlan(lanes=(1,), queue="q")


def test_resets_do_not_count_into_the_duration_of_chunks() -> None:
    made = scheduler(base_s=0.15)
    now = cycle(made, range(4), 0.0)
    made.executing([0, 1, 2, 3], "kind", now)
    for lane in (1, 2, 3):
        made.ready(lane, "q", now + 50.0, None)
    assert made.next_batch(now + 50.0) is not None
    made.ready(0, "q", now + 50.0, None)
    made.inferred(3, 0.2, now + 50.2)
    wake = made.wake_at(now + 50.0)
    assert wake is not None
    assert wake <= now + 50.2 + 1.5 * 0.16, "chunks are still expected to take 0.16 s"


def test_a_lane_that_waited_for_a_slot_waits_for_those_that_come_soon() -> None:
    made = scheduler(base_s=0.7)
    now = cycle(made, range(8), 0.0)
    made.executing(range(8), "kind", now)
    for lane in range(7):
        made.ready(lane, "q", now + 0.16, 0.16)
    made.leave(7)
    batch = batch_at(made, now + 0.16)
    # One that just missed the batch waits for its whole inference, and the seven execute then.
    made.ready(7, "q", now + 0.17, None)
    back = now + 0.16 + 0.7
    made.inferred(7, 0.7, back)
    made.executing(batch.lanes, "kind", back)
    assert made.next_batch(back) is None, "the others are ready in 0.16 s, an inference takes 0.7"


def test_signatures_never_share_a_batch_and_the_oldest_goes_first() -> None:
    made = scheduler()
    for lane, queue in enumerate("abab"):
        made.ready(lane, queue, float(lane), None)
    first = batch_at(made, 4.0)
    made.inferred(1, 0.1, 4.1)
    assert (first.queue, first.lanes[0]) == ("a", 0)
    second = batch_at(made, 4.1)
    assert (second.queue, second.lanes[0]) == ("b", 1)


def test_a_few_rows_that_were_left_over_do_not_hold_up_a_full_batch() -> None:
    made = scheduler(max_batch=28)
    for lane in range(32):
        made.ready(lane, "a", 0.0, None)
    first = batch_at(made, 0.0)
    assert len(first.lanes) == 28
    for lane in range(32, 64):
        made.ready(lane, "b", 0.1, None)
    made.inferred(28, 0.31, 0.31)
    second = batch_at(made, 0.31)
    assert (second.queue, len(second.lanes)) == ("b", 28), "four of a have waited longer"
    made.inferred(28, 0.31, 0.62)
    third = batch_at(made, 10.0)
    assert third.queue == "a", "they do not starve"


def test_lanes_that_begin_together_do_not_all_wait_for_one_large_batch() -> None:
    made = scheduler(base_s=0.01)
    for lane in range(64):
        made.begins(lane, 0.0)
        made.ready(lane, "q", 0.0, None)
    batch = batch_at(made, 0.0)
    assert len(batch.lanes) <= 16, "a batch of 64 takes half a second, of 16 an eighth"


def test_connections_of_which_nothing_is_known_leave_together() -> None:
    made = scheduler(base_s=0.01)
    for lane in range(64):
        made.ready(lane, "q", 0.0, None)
    batch = batch_at(made, 0.0)
    assert len(batch.lanes) == 64


def test_a_row_that_came_after_the_clock_was_read_leaves_too() -> None:
    made = Scheduler(SchedulerConfig(cores=64))
    made.seed_latency({1: 1e-5})
    assert made.latency.predict(1) == 1e-5
    made.ready(0, "q", 1.001, None)
    assert made.next_batch(1.0) is not None


def test_slots_are_counted() -> None:
    made = scheduler(concurrency=2, max_batch=1)
    for lane in range(3):
        made.ready(lane, "q", 0.0, None)
    assert made.next_batch(0.0) is not None
    assert made.next_batch(0.0) is not None
    assert made.next_batch(0.0) is None
    assert made.wake_at(0.0) is None, "only a slot can change that"
    made.inferred(1, 0.1, 0.1)
    assert made.next_batch(0.1) is not None


def test_connections_of_a_server_are_never_awaited() -> None:
    made = scheduler()
    for turn in range(20):
        now = float(turn)
        for lane in range(8):
            made.ready(lane, "q", now, None)
        while (batch := made.next_batch(now)) is not None:
            made.inferred(len(batch.lanes), 0.1, now)
            size = len(batch.lanes)
        assert made.waiting == 0
    assert size == 8, "all that are ready leave together"


def test_misuse_is_refused() -> None:
    made = scheduler()
    made.ready(0, "q", 0.0, None)
    with pytest.raises(ValueError, match="ready already"):
        made.ready(0, "q", 0.0, None)
    with pytest.raises(ValueError, match="in no batch"):
        made.executing([0], "kind", 0.0)
    with pytest.raises(ValueError, match="in no batch"):
        made.executing([5], "kind", 0.0)
    with pytest.raises(ValueError, match="No batch"):
        made.inferred(1, 0.1, 0.0)
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        SchedulerConfig(cores=1, concurrency=0)


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Lanes and a policy that behave in any order; the scheduler's promises hold throughout."""

    LANES = 10

    def __init__(self) -> None:
        super().__init__()
        self.slots, self.max_batch = 2, 4
        self.made = scheduler(concurrency=self.slots, max_batch=self.max_batch)
        self.now = 0.0
        self.away = set(range(self.LANES))
        self.queued: dict[Hashable, list[int]] = {"a": [], "b": []}
        self.inferring: list[BatchPlan] = []
        self.running: dict[int, float] = {}

    @rule(seconds=st.floats(0.0, 0.5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def a_trial_begins(self, data: st.DataObject) -> None:
        self.made.begins(data.draw(st.sampled_from(sorted(self.away))), self.now)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), queue=st.sampled_from("ab"))
    def a_reset_ends(self, data: st.DataObject, queue: str) -> None:
        lane = data.draw(st.sampled_from(sorted(self.away)))
        self.away.remove(lane)
        self.made.ready(lane, queue, self.now, None)
        self.queued[queue].append(lane)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), queue=st.sampled_from("ab"))
    def a_chunk_ends(self, data: st.DataObject, queue: str) -> None:
        lane = data.draw(st.sampled_from(sorted(self.running)))
        self.made.ready(lane, queue, self.now, self.now - self.running.pop(lane))
        self.queued[queue].append(lane)

    @precondition(lambda self: self.inferring)
    @rule(data=st.data(), kind=st.sampled_from(["fast", "slow"]))
    def a_batch_is_answered(self, data: st.DataObject, kind: str) -> None:
        batch = self.inferring.pop(data.draw(st.integers(0, len(self.inferring) - 1)))
        self.made.inferred(len(batch.lanes), 0.1, self.now)
        lanes = [lane for lane in batch.lanes if lane not in self.away]
        self.made.executing(lanes, kind, self.now)
        self.running.update(dict.fromkeys(lanes, self.now))

    @rule(lane=st.integers(0, LANES - 1))
    def a_lane_leaves(self, lane: int) -> None:
        if any(lane in batch.lanes for batch in self.inferring):
            return  # it would come back under its old number while its answer is on its way
        self.made.leave(lane)
        self.away.add(lane)
        self.running.pop(lane, None)
        for lanes in self.queued.values():
            if lane in lanes:
                lanes.remove(lane)

    @rule()
    def a_batch_is_asked_for(self) -> None:
        batch = self.made.next_batch(self.now)
        if batch is None:
            return
        self.inferring.append(batch)
        size = len(batch.lanes)
        assert 1 <= size <= self.max_batch
        assert list(batch.lanes) == self.queued[batch.queue][:size], "oldest first, one queue"
        del self.queued[batch.queue][:size]

    @rule()
    def whoever_is_ready_leaves_in_the_end(self) -> None:
        for batch in self.inferring:
            self.made.inferred(len(batch.lanes), 0.1, self.now)
            for lane in batch.lanes:
                self.made.leave(lane)
                self.away.add(lane)
        self.inferring.clear()
        for _ in range(1000):
            before = len(self.inferring)
            self.a_batch_is_asked_for()
            if len(self.inferring) > before:
                batch = self.inferring.pop()
                self.made.inferred(len(batch.lanes), 0.1, self.now)
                for lane in batch.lanes:
                    self.made.leave(lane)
                    self.away.add(lane)
                continue
            wake = self.made.wake_at(self.now)
            if wake is None:
                break
            assert wake > self.now, "asked at the time it named, it answers or names a later one"
            self.now = wake
        assert not any(self.queued.values())

    @invariant()
    def counts_agree(self) -> None:
        assert self.made.waiting == sum(map(len, self.queued.values()))
        assert self.made.in_flight == len(self.inferring) <= self.slots


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(stateful_step_count=60)


@pytest.mark.heavy
@given(
    durations=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=12),
    concurrency=st.integers(1, 3),
    signatures=st.integers(1, 3),
)
def test_no_lane_starves_in_a_run_in_virtual_time(
    durations: list[float], concurrency: int, signatures: int
) -> None:
    made = scheduler(concurrency=concurrency, max_batch=4)
    events: list[tuple[float, int, str, tuple[int, ...]]] = []
    serial = count()
    for lane in range(len(durations)):
        heappush(events, (0.0, next(serial), "ready", (lane,)))
    now, done = 0.0, [0] * len(durations)
    while min(done) < 5:
        wake = made.wake_at(now)
        if wake is not None and (not events or wake < events[0][0]):
            now = wake
        else:
            assert events, "nothing is left to happen, but lanes still wait"
            now, _, what, lanes = heappop(events)
            if what == "ready":
                lane = lanes[0]
                made.ready(lane, lane % signatures, now, durations[lane] if done[lane] else None)
                done[lane] += 1
            else:
                made.inferred(len(lanes), 0.1, now)
                for lane in lanes:
                    made.executing([lane], lane, now)
                    heappush(events, (now + durations[lane], next(serial), "ready", (lane,)))
        while (batch := made.next_batch(now)) is not None:
            assert len({lane % signatures for lane in batch.lanes}) == 1
            heappush(events, (now + 0.1, next(serial), "inferred", batch.lanes))
        assert now < 500.0, "a lane starves"


def ready_together(made: Scheduler, lanes: Iterable[int], now: float, busy_s: float) -> None:
    for lane in lanes:
        made.ready(lane, "q", now, busy_s)


def rows(base_s: float) -> Scheduler:
    made = Scheduler(SchedulerConfig(cores=8, max_batch=8))
    made.seed_latency(dict.fromkeys((1, 2, 4, 8), base_s))
    made.share_step(0.0)
    for lane in range(8):
        made.ready(lane, "q", 0.0, None)
    return made


def execute(made: Scheduler, now: float) -> tuple[int, ...]:
    """The batch that leaves now is inferred in 0.2 s, and its chunks are sent."""
    plan = batch_at(made, now)
    made.inferred(len(plan.lanes), 0.2, now + 0.2)
    made.executing(plan.lanes, "kind", now + 0.2)
    return plan.lanes


def test_rows_that_share_a_step_stay_in_one_batch_where_that_takes_no_longer() -> None:
    made = rows(0.2)
    assert len(execute(made, 0.0)) == 8
    made.share_step(0.02)
    ready_together(made, range(8), 0.52, 0.32)
    assert len(execute(made, 0.52)) == 8


def test_a_row_whose_episode_ended_early_waits_for_those_that_it_is_in_step_with() -> None:
    made = rows(0.2)
    execute(made, 0.0)
    made.share_step(0.02)
    for now in (0.3, 0.9):
        made.leave(3)
        made.ready(3, "q", now, None)
        assert made.next_batch(now) is None
        ready_together(made, [0, 1, 2, 4, 5, 6, 7], now + 0.22, 0.32)
        assert len(execute(made, now + 0.22)) == 8


def test_rows_in_step_leave_without_one_that_is_overdue() -> None:
    made = rows(0.2)
    execute(made, 0.0)
    made.share_step(0.02)
    ready_together(made, list(range(8)), 0.52, 0.32)
    execute(made, 0.52)
    ready_together(made, list(range(7)), 1.04, 0.32)
    assert made.next_batch(1.04) is None
    late_at = made.wake_at(1.04)
    assert late_at is not None
    plan = batch_at(made, late_at)
    assert len(plan.lanes) == 7


def test_rows_part_once_it_is_seen_that_episodes_are_short() -> None:
    made = rows(0.02)
    now = 0.0
    for _ in range(4):
        plan = batch_at(made, now)
        made.inferred(len(plan.lanes), 0.03, now + 0.03)
        made.executing(plan.lanes, "kind", now + 0.03)
        made.share_step(0.02)
        for lane in range(4):
            made.leave(lane)
            made.ready(lane, "q", now + 0.05, None)
        now += 0.35
        ready_together(made, [4, 5, 6, 7], now, 0.32)
    execute(made, now)
    made.leave(0)
    made.ready(0, "q", now + 0.25, None)
    assert made.next_batch(now + 0.25) is not None


def padded(sizes: tuple[int, ...]) -> Scheduler:
    """Twelve lanes and a policy that pads to these sizes; all lanes have executed chunks."""
    made = Scheduler(SchedulerConfig(cores=64, max_batch=16))
    made.seed_latency(
        {n: 0.02 * next(size for size in sizes if size >= n) for n in (1, 2, 3, 4, 5, 8, 9, 12, 16)}
    )
    now = 0.0
    for _ in range(8):
        for lane in range(12):
            made.ready(lane, "q", now, 0.1 if now else None)
        while made.waiting:
            batch = batch_at(made, now)
            made.inferred(
                len(batch.lanes), 0.02 * next(s for s in sizes if s >= len(batch.lanes)), now
            )
            made.executing(batch.lanes, "kind", now)
        now += 0.1
    return made


def test_a_batch_is_cut_where_one_row_more_would_double_its_time() -> None:
    made = padded((8, 16))
    ready_together(made, list(range(9)), 0.9, 0.1)
    for lane in (9, 10, 11):
        made.leave(lane)
    batch = batch_at(made, 0.9)
    assert len(batch.lanes) == 8


def test_a_batch_that_is_given_up_gives_its_slot_back() -> None:
    made = scheduler(concurrency=2, max_batch=1)
    for lane in range(3):
        made.ready(lane, "q", 0.0, None)
    assert made.next_batch(0.0) is not None
    assert made.next_batch(0.0) is not None
    made.given_up(1.0, 1)
    assert made.in_flight == 1
    assert made.next_batch(1.0) is None, "one slot is left, and it is taken"
    made.inferred(1, 0.1, 1.1)
    assert made.next_batch(1.1) is not None


def test_a_slot_waits_for_those_that_come_back_with_the_first() -> None:
    made = scheduler(concurrency=2, max_batch=8, base_s=0.5)
    now = cycle(made, range(8), 0.0, busy_s=0.02)
    for lane in range(8):
        made.leave(lane)
        made.ready(lane, "q", now, None)
    first, second = made.next_batch(now), made.next_batch(now)
    assert first is not None
    assert second is not None
    assert (first.lanes, second.lanes) == ((0, 1, 2, 3), (4, 5, 6, 7)), "each slot has its share"
    now += 0.53
    made.inferred(4, 0.53, now)
    made.executing(first.lanes, "kind", now)
    made.ready(0, "q", now + 0.02, 0.02)
    assert made.next_batch(now + 0.02) is None
    for lane in (1, 2, 3):
        made.ready(lane, "q", now + 0.021, 0.021)
    batch = batch_at(made, now + 0.021)
    assert batch.lanes == (0, 1, 2, 3), "those that are inferred meanwhile are not awaited"


def on_one_gpu(made: Scheduler, *, slowed: float, lanes: int, batches: int) -> list[int]:
    """The sizes of the batches of lanes that make an inference longer by a share each where they
    execute when it begins: a run in virtual time."""
    events: list[tuple[float, int, BatchPlan | int, float]] = []
    order, now, sizes, busy = count(), 0.0, list[int](), 0
    for lane in range(lanes):
        made.ready(lane, "q", now, None)
    while len(sizes) < batches:
        while (batch := made.next_batch(now)) is not None:
            sizes.append(len(batch.lanes))
            took_s = (0.05 + 0.001 * len(batch.lanes)) * (1.0 + slowed * busy)
            heappush(events, (now + took_s, next(order), batch, took_s))
        wake = made.wake_at(now)
        if wake is not None and (not events or wake < events[0][0]):
            now = wake
            continue
        now, _, done, took_s = heappop(events)
        if isinstance(done, int):
            busy -= 1
            made.ready(done, "q", now, took_s)
            continue
        made.inferred(len(done.lanes), took_s, now)
        made.executing(done.lanes, "kind", now)
        for lane in done.lanes:
            busy += 1
            execute_s = 0.1 + 0.02 * ((7 * lane + len(sizes)) % 5)
            heappush(events, (now + execute_s, next(order), lane, execute_s))
    return sizes


@pytest.mark.parametrize("concurrency", [1, 2])
def test_lanes_that_render_on_the_policys_gpu_are_waited_for(concurrency: int) -> None:
    made = Scheduler(SchedulerConfig(cores=64, concurrency=concurrency))
    made.seed_latency({size: 0.05 + 0.001 * size for size in (1, 2, 4, 6)})
    sizes = on_one_gpu(made, slowed=1.2, lanes=6, batches=200)
    assert min(sizes[-20:]) == 6
    made = Scheduler(SchedulerConfig(cores=64, concurrency=concurrency))
    made.seed_latency({size: 0.05 + 0.001 * size for size in (1, 2, 4, 6)})
    sizes = on_one_gpu(made, slowed=0.0, lanes=6, batches=200)
    assert max(sizes[-20:]) < 6 or concurrency == 1
