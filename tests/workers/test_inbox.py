"""Messages of workers as columns: the same whatever else came with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.core.wire import END_TRUNCATED, Executed
from hocket.workers.inbox import Logbook
from hocket.workers.notices import LanesExecuted
from hocket.workers.slots import Phase, Station

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


def hear(station: Station, *messages: Executed) -> LanesExecuted | None:
    book = Logbook()
    for message in messages:
        book.executed(station, message, 0.0)
    notices = book.take()
    assert len(notices) <= 1
    return notices[0] if notices else None  # type: ignore[return-value]


@given(REWARDS)
def test_rewards_and_their_sums_do_not_depend_on_the_rows_beside(
    rewards: list[list[float]],
) -> None:
    together = hear(Station(range(len(rewards))), executed(rewards))
    alone = [hear(Station(range(1)), executed([row])) for row in rewards]
    assert together is not None
    assert [one.tolist() for one in together.rewards] == rewards
    totals = [one.totals[0] for one in alone if one is not None]
    assert together.totals == totals  # to the bit


def test_equal_chunks_add_up_as_single_ones_do() -> None:
    rewards = np.random.default_rng(0).normal(size=(64, 16)) * 1e6
    together = hear(Station(range(64)), executed(rewards.tolist()))
    alone = [hear(Station(range(1)), executed([row])) for row in rewards.tolist()]
    assert together is not None
    assert together.totals == [one.totals[0] for one in alone if one is not None]


def test_messages_of_one_poll_make_one_notice() -> None:
    stations = [Station(range(lane, lane + 1)) for lane in range(3)]
    book = Logbook()
    for station in stations:
        book.executed(station, executed([[1.0, 2.0]]), 0.0)
    (notice,) = book.take()
    assert isinstance(notice, LanesExecuted)
    assert notice.lanes == [0, 1, 2]
    assert notice.totals == [3.0, 3.0, 3.0]
    assert not book.take()


def test_nothing_is_told_of_discarded_attempts_whose_answers_come_late() -> None:
    station = Station(range(3))
    station.seats[1].orphans = 1
    for seat in station.seats:
        seat.phase = Phase.EXECUTING
    station.seats[1].phase = Phase.IDLE
    notice = hear(station, executed([[1.0], [2.0], [3.0]], ends=[0, END_TRUNCATED, END_TRUNCATED]))
    assert notice is not None
    assert notice.lanes == [0, 2]
    assert notice.totals == [1.0, 3.0]
    assert [seat.phase for seat in station.seats] == [Phase.READY, Phase.IDLE, Phase.IDLE]
    assert [list(seat.sealing) for seat in station.seats] == [[], [-1], [7]]
    assert station.seats[1].orphans == 0
    assert station.episodes == 2
