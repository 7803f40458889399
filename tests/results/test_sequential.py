"""The sequential test decides for the better side, and keeps its alpha over all looks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from hocket.results.comparing.sequential import PairedSequentialTest, Stake


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([1.0, 2.0]))
def test_capital_is_the_mixture_of_bets_on_more_than_half(
    wins: int, losses: int, prior: float
) -> None:
    test = PairedSequentialTest(prior=prior)
    found = math.exp(float(test.evidence(np.array(wins), np.array(losses))))
    expected, _ = quad(
        lambda q: (2 * q) ** wins * (2 - 2 * q) ** losses * 2 * beta.pdf(q, prior, prior), 0.5, 1
    )
    assert found == pytest.approx(expected, rel=1e-6)


@given(st.integers(0, 60), st.integers(0, 60))
def test_capital_never_grows_on_average_where_neither_is_better(wins: int, losses: int) -> None:
    test = PairedSequentialTest()
    now, won, lost = (
        math.exp(float(test.evidence(np.array(w), np.array(m))))
        for w, m in ((wins, losses), (wins + 1, losses), (wins, losses + 1))
    )
    assert (won + lost) / 2 == pytest.approx(now, rel=1e-9)


def exact_error(test: PairedSequentialTest, pairs: int, share: float) -> float:
    """Probability of ever deciding within so many discordant pairs, of which a wins a share."""
    alive, decided = {0: 1.0}, 0.0
    for m in range(1, pairs + 1):
        reached: dict[int, float] = {}
        for wins, mass in alive.items():
            reached[wins + 1] = reached.get(wins + 1, 0.0) + mass * share
            reached[wins] = reached.get(wins, 0.0) + mass * (1 - share)
        wins_now = np.array(list(reached))
        peak = np.maximum(
            test.evidence(wins_now, m - wins_now), test.evidence(m - wins_now, wins_now)
        )
        crossed = dict(zip(reached, peak >= test.threshold, strict=True))
        decided += sum(mass for wins, mass in reached.items() if crossed[wins])
        alive = {wins: mass for wins, mass in reached.items() if not crossed[wins]}
    return decided


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_looking_after_every_pair_errs_at_most_alpha_in_all(alpha: float) -> None:
    error = exact_error(PairedSequentialTest(alpha=alpha), pairs=300, share=0.5)
    assert 0.2 * alpha < error <= alpha


def test_a_real_difference_is_found_soon() -> None:
    assert exact_error(PairedSequentialTest(), pairs=60, share=0.8) > 0.9


def test_first_look_that_decides_ends_the_test() -> None:
    a, b = [True] * 100, [False] * 100
    found = PairedSequentialTest().run(a, b)
    assert found.decision == "a better"
    assert found.pairs == found.only_a < 15
    assert PairedSequentialTest().run(b, a).decision == "b better"
    # What comes after the decision cannot take it back.
    assert PairedSequentialTest().run(a + b, b + a) == found


def test_pairs_that_agree_say_nothing() -> None:
    found = PairedSequentialTest().run([True, False] * 500, [True, False] * 500)
    assert (found.decision, found.pairs, found.p_value) == ("undecided", 1000, 1.0)


def test_p_value_is_at_most_alpha_exactly_when_decided() -> None:
    rng = np.random.default_rng(3)
    decisions = set()
    for share in np.linspace(0.5, 1.0, 30):
        a = rng.random(40) < share
        found = PairedSequentialTest().run(a, ~a)
        assert found.p_value is not None
        assert (found.p_value <= 0.05) == (found.decision != "undecided")
        decisions.add(found.decision)
    assert decisions == {"a better", "undecided"}


def test_looks_are_at_whole_rounds_only() -> None:
    found = PairedSequentialTest(pairs_per_round=7, bets_on="pairs").run([True] * 20, [False] * 20)
    assert (found.pairs, found.decision) == (14, "a better")
    short = PairedSequentialTest(pairs_per_round=7).run([True] * 6, [False] * 6)
    assert (short.pairs, short.decision) == (0, "undecided")


def test_opposed_tasks_do_not_decide_at_whole_rounds() -> None:
    """One task a always wins, one b always wins: no round moves the counts apart."""
    a = [True] * 5 + [False] * 5
    b = [False] * 5 + [True] * 5
    for bets_on in BETS:
        test = PairedSequentialTest(pairs_per_round=10, bets_on=bets_on)
        assert test.run(a * 50, b * 50).decision == "undecided"


BETS: tuple[Stake, ...] = ("pairs", "rounds")


@given(st.lists(st.sampled_from([(True, False), (False, True), (True, True)]), max_size=60))
def test_a_round_of_one_pair_is_the_same_bet_either_way(pairs: list[tuple[bool, bool]]) -> None:
    a, b = [left for left, _ in pairs], [right for _, right in pairs]
    one, other = (PairedSequentialTest(bets_on=bets_on).run(a, b) for bets_on in BETS)
    assert one == other


def twins(rng: np.random.Generator, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of ten tasks that all go as one: neither side is better."""
    a = np.repeat(rng.random(rounds) < 0.5, 10)
    return a, ~a


def test_tasks_that_go_as_one_fool_bets_on_pairs_and_not_bets_on_rounds() -> None:
    rng = np.random.default_rng(0)
    wrong = dict.fromkeys(BETS, 0)
    for _ in range(40):
        a, b = twins(rng, 15)
        for bets_on in BETS:
            test = PairedSequentialTest(pairs_per_round=10, bets_on=bets_on)
            wrong[bets_on] += test.run(a, b).decision != "undecided"
    assert wrong["pairs"] >= 36
    assert wrong["rounds"] <= 4


def test_bets_on_rounds_find_a_real_difference_of_tasks_that_go_as_one() -> None:
    rng = np.random.default_rng(1)
    a = np.repeat(rng.random(60) < 0.9, 10)
    found = PairedSequentialTest(pairs_per_round=10).run(a, ~a)
    assert (found.decision, found.number) == ("a better", found.pairs // 10)


@pytest.mark.parametrize("bets_on", BETS)
def test_the_interval_excludes_zero_exactly_when_it_is_decided(bets_on: Stake) -> None:
    rng = np.random.default_rng(2)
    decisions = set()
    for gain in np.linspace(0.0, 0.5, 8):
        looks = PairedSequentialTest(pairs_per_round=4, bets_on=bets_on).begin()
        assert looks.interval() is None
        for _ in range(25):
            look = looks.see(rng.random(4) < 0.4 + gain, rng.random(4) < 0.4)
            found = looks.interval()
            assert found is not None
            assert -1 <= found.low < found.high <= 1
            is_refuted = found.low > 0 or found.high < 0
            # The first look that refutes 0 decides, and later ones change nothing.
            assert not is_refuted or look.decision != "undecided"
            if look.decision != "undecided" and look.pairs == looks.look.pairs:
                decisions.add(look.decision)
    assert decisions == {"a better"}


@pytest.mark.parametrize("bets_on", BETS)
def test_the_interval_holds_the_truth_at_the_moment_of_stopping(bets_on: Stake) -> None:
    rng = np.random.default_rng(3)
    held = stopped = 0
    for _ in range(60):
        looks = PairedSequentialTest(pairs_per_round=2, bets_on=bets_on).begin()
        for _ in range(60):
            if looks.see(rng.random(2) < 0.7, rng.random(2) < 0.4).decision != "undecided":
                stopped += 1
                break
        found = looks.interval()
        assert found is not None
        held += found.low <= 0.3 <= found.high
    assert stopped > 30
    assert held >= 54  # 95 % of 60 is 57


def test_a_round_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="A round has 3 pairs, not 2"):
        PairedSequentialTest(pairs_per_round=3).begin().see([True, True], [False, True])


def test_a_look_asks_for_no_more_than_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at thousands of rounds are made on the engine's thread: none goes over the past."""
    sizes: list[int] = []
    whole = PairedSequentialTest.evidence

    def counted(test: PairedSequentialTest, wins: Any, losses: Any) -> Any:
        sizes.append(np.size(wins))
        return whole(test, wins, losses)

    monkeypatch.setattr(PairedSequentialTest, "evidence", counted)
    looks = PairedSequentialTest(pairs_per_round=2, bets_on="pairs").begin()
    for _ in range(300):
        looks.see([True, False], [False, True])
    assert sizes == [2] * 300


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"pairs_per_round": 0}, {"prior": 0.0}])
def test_a_test_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is no test"):
        PairedSequentialTest(**wrong)  # type: ignore[arg-type]


def test_unequal_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="one value each"):
        PairedSequentialTest().run([True], [True, False])
