from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hocket.train.collect.plan import Crossing
from hocket.train.learner.learner import linear


def test_a_threshold_that_is_jumped_over_fires_once() -> None:
    crossing = Crossing(every=100)
    assert [crossing.fires(count) for count in (64, 128, 192, 260, 700, 701)] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_zero_never_fires() -> None:
    assert not any(Crossing(every=0).fires(count) for count in range(1000))


def test_a_restored_crossing_does_not_fire_again_for_the_same_threshold() -> None:
    first = Crossing(every=100)
    assert first.fires(150)
    again = Crossing(every=100, last=first.last)
    assert not again.fires(190)
    assert again.fires(200)


@given(st.integers(1, 50), st.lists(st.integers(1, 120), min_size=1, max_size=50))
def test_it_fires_for_every_jump_that_passes_a_multiple(every: int, jumps: list[int]) -> None:
    crossing, count = Crossing(every=every), 0
    for jump in jumps:
        before, count = count, count + jump
        assert crossing.fires(count) == (count // every > before // every)


def test_linear_stays_at_its_end() -> None:
    assert linear(1.0, 0.0, 0.25) == 0.75
    assert linear(1.0, 0.0, 2.0) == 0.0
