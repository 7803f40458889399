"""Episodes that are kept as columns are those that went in, whatever they say."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest

from hocket.core.data import Episode, Outcome, Trial
from hocket.core.events import AttemptsBegan, EpisodesSealed
from hocket.records.ledger import episodes as columns
from hocket.records.ledger.episodes import NUMBERS, Episodes, Trials, common_rows
from hocket.records.ledger.ledger import Ledger
from hocket.records.ledger.view import LedgerView

WORDS = ("", "plain", "two\nlines", 'a "quote", a \\n', "žluťoučký", "\u2028 \0", "null", "[]")


def drawn(rng: random.Random, count: int) -> list[Episode]:
    """Episodes of trials in two suites, with what is odd in every field that may be."""
    kinds = [("a", "task"), ("a", "other"), ("b / c", "task")]
    names = {(rng.choice(kinds), rng.choice([n, 2**62 + n]), n % 3) for n in range(2 * count)}
    found = []
    for (suite, task), seed, repeat in rng.sample(sorted(names), count):
        outcome = rng.choice(list(Outcome))
        found.append(
            Episode(
                trial=Trial(suite, task, seed, repeat),
                attempt=rng.randrange(3),
                outcome=outcome,
                steps=rng.choice([0, 7, 2**40]),
                total_reward=rng.choice([0.0, -1.25, math.inf, 1e-300]),
                terminated=rng.random() < 0.5,
                truncated=rng.random() < 0.5,
                chunks=rng.randrange(9),
                error=rng.choice(WORDS) if outcome is Outcome.ERROR else None,
                seconds=rng.random(),
                files=tuple(rng.sample(WORDS[1:], rng.choice([0, 0, 2]))),
                progress=rng.choice([None, 0.0, 0.5]),
                told=rng.choice([{}, {"x": 1, "y": 0.5, "z": True}, {rng.choice(WORDS): -1}]),
                remarks=tuple(rng.sample(WORDS, rng.choice([0, 0, 1]))),
                diverged=rng.random() < 0.1,
            )
        )
    return found


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
    """A hundred episodes, in batches of sixteen."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    monkeypatch.setattr(columns, "BATCH", 16)
    return drawn(random.Random(seed), 100)


def types_of(episode: Episode) -> list[object]:
    return [*map(type, episode), *map(type, episode.trial), *map(type, episode.told.values())]


def test_episodes_come_back_as_they_went_in(some: list[Episode]) -> None:
    kept = Episodes.of(some)
    assert list(kept) == some
    assert [types_of(each) for each in kept] == [types_of(each) for each in some]
    assert (kept[17], kept[-1], kept[14:18]) == (some[17], some[-1], some[14:18])
    assert kept.at([0, 15, 16, 99]) == [some[0], some[15], some[16], some[99]]
    errors = kept.at(kept.rows(Outcome.ERROR))
    assert errors == [each for each in some if each.outcome is Outcome.ERROR]
    with pytest.raises(IndexError):
        kept[100]


def test_a_return_that_was_no_number_stays_none(some: list[Episode]) -> None:
    (found,) = Episodes.of([some[0]._replace(total_reward=math.nan)])
    assert math.isnan(found.total_reward)


def test_a_ledger_gives_back_what_it_was_given(tmp_path: Path, some: list[Episode]) -> None:
    trials = [each.trial for each in some]
    ended = [each._replace(attempt=0) for each in some if each.seconds < 0.7]
    with Ledger.create(tmp_path, trials, {}) as ledger:
        mine = [each.trial for each in ended]
        began = AttemptsBegan(
            time=0.0, lanes=range(len(mine)), trials=mine, attempts=[0] * len(mine)
        )
        ledger.on(began)
        ledger.on(EpisodesSealed(time=1.0, episodes=ended))
    with LedgerView.open(tmp_path) as view:
        planned, found = view.read()
        numbers = view.read(NUMBERS)[1]
        assert view.remaining() == [each.trial for each in some if each.seconds >= 0.7]
    assert list(planned) == trials
    assert planned.taken(found.columns["places"]) == found.trials
    assert list(found) == ended
    assert numbers.columns["steps"].tolist() == [each.steps for each in ended]
    with pytest.raises(KeyError):
        list(numbers)  # made of numbers alone it would have no error and no file


def test_trials_are_found_among_others_by_name_and_not_by_place(some: list[Episode]) -> None:
    trials = [each.trial for each in some]
    others = [*trials[40:], Trial("b / c", "task", -1), *trials[:30][::-1]]
    here, there = common_rows(Trials.of(trials), Trials.of(others))
    assert [trials[row] for row in here] == [others[row] for row in there]
    assert [trials[row] for row in here] == [t for t in trials if t in set(others)]
    assert Trials.of(trials) != Trials.of(others)
    assert Trials.of(trials) == trials
