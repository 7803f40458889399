"""Messages of workers as columns: the same whatever else came with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.wire import END_TRUNCATED, Executed
from hocket.workers.inbox import Inbox
from hocket.workers.notices import LanesExecuted
from hocket.workers.slots import Phase, WorkerSlot

REWARDS = st.lists(st.lists(st.floats(-1e9, 1e9), min_size=0, max_size=20), min_size=1, max_size=12)


def executed(rewards: Sequence[Sequence[float]], ends: Sequence[int] = ()) -> Executed:
    count = len(rewards)
    return Executed(
        lanes=list(range(count)),
        attempts=[7] * count,
        chunks=[3] * count,
        steps=[len(row) for row in rewards],
        rewards=np.array([one for row in rewards for one in row]).tobytes(),
        ends=list(ends) or [0] * count,
        busy_s=[0.1] * count,
        observe_s=[0.0] * count,
        arrays=None,
    )


def hear(worker: WorkerSlot, *messages: Executed) -> LanesExecuted | None:
    inbox = Inbox()
    for message in messages:
        inbox.hear(worker, message, 0.0)
    notices = inbox.take()
    assert len(notices) <= 1
    return notices[0] if notices else None  # type: ignore[return-value]


@given(REWARDS)
def test_rewards_and_their_sums_do_not_depend_on_the_rows_beside(
    rewards: list[list[float]],
) -> None:
    together = hear(WorkerSlot(range(len(rewards))), executed(rewards))
    alone = [hear(WorkerSlot(range(1)), executed([row])) for row in rewards]
    assert together is not None
    assert [one.tolist() for one in together.rewards] == rewards
    totals = [one.totals[0] for one in alone if one is not None]
    assert together.totals == totals  # to the bit


def test_equal_chunks_add_up_as_single_ones_do() -> None:
    rewards = np.random.default_rng(0).normal(size=(64, 16)) * 1e6
    together = hear(WorkerSlot(range(64)), executed(rewards.tolist()))
    alone = [hear(WorkerSlot(range(1)), executed([row])) for row in rewards.tolist()]
    assert together is not None
    assert together.totals == [one.totals[0] for one in alone if one is not None]


def test_messages_of_one_poll_make_one_notice() -> None:
    workers = [WorkerSlot(range(lane, lane + 1)) for lane in range(3)]
    inbox = Inbox()
    for worker in workers:
        inbox.hear(worker, executed([[1.0, 2.0]]), 0.0)
    (notice,) = inbox.take()
    assert isinstance(notice, LanesExecuted)
    assert notice.lanes == [0, 1, 2]
    assert notice.totals == [3.0, 3.0, 3.0]
    assert not inbox.take()


def test_nothing_is_told_of_discarded_attempts_whose_answers_come_late() -> None:
    worker = WorkerSlot(range(3))
    worker.slots[1].orphans = 1
    for slot in worker.slots:
        slot.phase = Phase.EXECUTING
    worker.slots[1].phase = Phase.IDLE
    notice = hear(worker, executed([[1.0], [2.0], [3.0]], ends=[0, END_TRUNCATED, END_TRUNCATED]))
    assert notice is not None
    assert notice.lanes == [0, 2]
    assert notice.totals == [1.0, 3.0]
    assert [slot.phase for slot in worker.slots] == [Phase.READY, Phase.IDLE, Phase.IDLE]
    assert [list(slot.sealing) for slot in worker.slots] == [[], [-1], [7]]
    assert worker.slots[1].orphans == 0
    assert worker.episodes == 2
