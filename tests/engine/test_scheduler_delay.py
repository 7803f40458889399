"""Batches of lanes that go on while the policy thinks, in virtual time."""

from __future__ import annotations

import heapq
import random

import pytest

from hocket.engine.scheduling.scheduler import Scheduler, SchedulerConfig

STEP_S = 0.0102


def share_of_limit(lanes: int, infer_s: float, replan: int, delay: int, seconds: float) -> float:
    """Steps a second beside the most that can be: a cycle of max(L, d steps) + (s - d) steps. A
    lane asks, executes d steps, waits for its answer, executes s - d steps and asks again; messages
    take a fraction of a millisecond, and now and then three."""
    draw = random.Random(1)

    def message() -> float:
        late = 3e-3 * draw.random() if draw.random() < 0.02 else 0.0
        return 2e-4 * draw.lognormvariate(0, 0.5) + late

    def steps(count: int) -> float:
        return sum(STEP_S + draw.expovariate(1e4) for _ in range(count))

    scheduler = Scheduler(SchedulerConfig(cores=2))
    scheduler.seed_latency({1: infer_s, lanes: infer_s})
    answered: dict[int, float] = {}
    free_at = dict.fromkeys(range(lanes), 0.0)
    """When each lane has executed what is committed."""
    events: list[tuple[float, int, tuple[int, ...]]] = [
        (0.01 * draw.random(), number, (number,)) for number in range(lanes)
    ]
    heapq.heapify(events)
    made, number = 0, lanes
    while True:
        now, event, who = heapq.heappop(events)
        if now > seconds:
            return (
                made
                / (0.75 * seconds)
                / (lanes * replan / (max(infer_s, delay * STEP_S) + (replan - delay) * STEP_S))
            )
        if event < 0:  # an answer
            scheduler.inferred(len(who), infer_s, now)
            scheduler.executing(who, "chunk", now)
            for lane in who:
                begins = max(now + message(), free_at[lane])
                answered[lane] = now
                number += 1
                heapq.heappush(
                    events, (begins + steps(replan - delay) + message(), number, (lane,))
                )
                made += replan if now > seconds / 4 else 0
        elif who:  # a question
            (lane,) = who
            busy_s = now - answered[lane] if lane in answered else None
            free_at[lane] = now + (steps(delay) if lane in answered else 0.0)
            scheduler.ready(lane, "queue", now, busy_s)
        plan = scheduler.next_batch(now)
        number += 1
        if plan is not None:
            took_s = infer_s + 4e-4 * draw.random()
            heapq.heappush(events, (now + took_s, -number, plan.lanes))
        elif (wake_at := scheduler.wake_at(now)) is not None:
            heapq.heappush(events, (max(wake_at, now + 1e-4), number, ()))


@pytest.mark.parametrize(("infer_s", "replan"), [(0.08, 8), (0.04, 8), (0.16, 16), (0.08, 16)])
def test_lanes_that_go_on_lose_little_to_each_other(infer_s: float, replan: int) -> None:
    # A lane that misses its batch waits for all of the next: where nobody waits for those that
    # come a little later, 0.66 of the limit where the delay is all of a chunk.
    delay = round(infer_s / 0.01)
    assert share_of_limit(8, infer_s, replan, delay, seconds=8.0) > 0.95
