"""One lane in the engine's own process: its env and all others draw from their own numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.workers.inline import Randomness

SEEDS = ((True, 7), (False, 3))
DRAWS = ("normal", "random_sample", "seed", "plain")
turns = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(DRAWS), max_size=5)), max_size=12
)


def drawn(kind: str, numbers: Any, plain: Any) -> float:
    if kind == "plain":
        return float(plain.gauss(0, 1))
    if kind == "seed":
        numbers.seed(5)
        return 0.0
    return float(getattr(numbers, kind)())


@given(turns)
def test_each_side_draws_as_if_the_other_were_not_there(
    turns: Sequence[tuple[bool, Sequence[str]]],
) -> None:
    before, generator = (random.getstate(), np.random.get_state()), np.random.get_bit_generator()
    try:
        random.seed(3)
        np.random.seed(3)
        apart = Randomness()
        with apart.apart():
            random.seed(7)
            np.random.seed(7)
        alone = {inside: (np.random.RandomState(n), random.Random(n)) for inside, n in SEEDS}
        for inside, kinds in turns:
            with apart.apart() if inside else nullcontext():
                found = [drawn(kind, np.random, random) for kind in kinds]
            assert found == [drawn(kind, *alone[inside]) for kind in kinds]
            assert np.random.get_bit_generator() is generator
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
