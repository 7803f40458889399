from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.train.algorithms.stretches import Stretch
from hocket.train.learner.learner import StretchQueue
from support.trajectories import stretch


def episode(seed: int, version: int = 0, **changes: object) -> Stretch:
    return stretch(np.random.default_rng(seed), seed=seed, version=version, **changes)


def seeds(stretches: tuple[Stretch, ...]) -> list[int]:
    return [part.trial.seed for part in stretches]


def test_parcels_leave_in_the_order_they_came_and_only_once() -> None:
    queue = StretchQueue(batch=2, max_staleness=4)
    for seed in range(5):
        queue.put([episode(seed)])
    assert seeds(queue.take(0).stretches) == [0, 1]
    assert seeds(queue.take(1).stretches) == [2, 3]
    assert seeds(queue.take(2).stretches) == [4]
    assert queue.take(3).stretches == ()


def test_the_same_chunk_cannot_come_twice() -> None:
    queue = StretchQueue(batch=1, max_staleness=4)
    queue.put([episode(1)])
    with pytest.raises(RuntimeError, match="twice"):
        queue.put([episode(1)])
    queue.take(0)
    with pytest.raises(RuntimeError, match="twice"):
        queue.put([episode(1)])


def test_stretches_of_an_episode_must_follow_each_other() -> None:
    queue = StretchQueue(batch=1, max_staleness=4)
    queue.put([episode(1, chunks=2, terminated=False)])
    with pytest.raises(RuntimeError, match="2 was next"):
        queue.put([episode(1, first=3)])


def test_a_stretch_without_its_end_does_not_make_a_batch() -> None:
    queue = StretchQueue(batch=1, max_staleness=1)
    queue.put([episode(1, chunks=2, terminated=False)])
    assert not queue.is_due(0, floor=0)
    queue.put([episode(1, first=2)])
    assert queue.is_due(0, floor=0)
    assert queue.take(0).episodes == 1


def test_what_is_too_old_is_dropped_and_counted() -> None:
    queue = StretchQueue(batch=1, max_staleness=2)
    queue.put([episode(1, version=0)])
    queue.put([episode(2, version=1)])
    taken = queue.take(3)
    assert seeds(taken.stretches) == [2]
    assert (taken.dropped, taken.staleness) == (1, 2)
    assert queue.take(3).dropped == 0


def test_staleness_of_a_parcel_is_that_of_its_oldest_chunk() -> None:
    queue = StretchQueue(batch=1, max_staleness=2)
    queue.put([episode(1, version=5, chunks=2), episode(2, chunks=2, version=np.array([2, 5]))])
    assert queue.take(5).dropped == 2


def test_what_would_be_too_old_for_the_next_update_goes_with_this_one() -> None:
    queue = StretchQueue(batch=1, max_staleness=1)
    for seed, version in ((1, 1), (2, 0), (3, 1)):
        queue.put([episode(seed, version=version)])
    assert seeds(queue.take(1).stretches) == [1, 2]
    assert seeds(queue.take(2).stretches) == [3]


def test_an_update_waits_for_an_episode_that_it_would_make_too_old() -> None:
    queue = StretchQueue(batch=1, max_staleness=1)
    queue.put([episode(1, version=3)])
    assert not queue.is_due(3, floor=2)
    assert queue.is_due(3, floor=3)


def test_more_than_the_throttle_allows_is_an_error() -> None:
    queue = StretchQueue(batch=1, max_staleness=1)
    for seed in range(3):
        queue.put([episode(seed)])
    with pytest.raises(RuntimeError, match="throttle"):
        queue.put([episode(9)])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=40))
def test_every_episode_is_taken_once_or_dropped_and_never_too_old(
    rounds: list[tuple[int, int]],
) -> None:
    queue = StretchQueue(batch=2, max_staleness=2)
    version, put, used, dropped = 0, 0, [], 0
    for arrivals, age in rounds:
        for _ in range(arrivals):
            if queue.episodes < queue.outstanding:
                queue.put([episode(put, version=max(0, version - age))])
                put += 1
        if queue.is_due(version, floor=version):
            taken = queue.take(version)
            assert taken.staleness <= 2
            used += seeds(taken.stretches)
            dropped += taken.dropped
            version += 1
    assert len(used) == len(set(used))
    assert len(used) + dropped + queue.episodes == put
