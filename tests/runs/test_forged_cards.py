"""Cards of strangers: forged ones are not verified, malformed ones are refused in words."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.cli import main
from hocket.errors import HocketError, RunFolderError, UsageError
from hocket.results.card import Card
from hocket.runs.checks.card import CardCheck, check_card, config_for, write_card
from hocket.runs.config import EvalConfig

ENV, POLICY = "support.carded:Choice", "support.carded:HalfAble"
SCORES = ("overall", "suites", "tasks", "planned", "complete")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Document:
    folder = tmp_path_factory.mktemp("honest")
    hocket.evaluate(env=ENV, policy=POLICY, out=folder / "run", episodes=100, lanes=1, seed=3)
    write_card(folder / "run", folder)
    document: Document = json.loads((folder / "card.json").read_text())
    return document


def check(path: Path, document: Document, sample: int = 40, **settings: Any) -> CardCheck:
    path /= "card.json"
    path.write_text(json.dumps(document))
    card = Card.load(path)
    config = EvalConfig(env=(ENV,), policy=POLICY, lanes=1)
    return check_card(
        card, config_for(card, config), sample=sample, **{"sample_seed": 1} | settings
    )


def forged(honest: Document, keep: Callable[[int, str], str | None]) -> Document:
    """The card with another letter for each trial, or none; its scores are left for the reader to
    count."""
    document = copy.deepcopy(honest)
    (group,) = document["trials"]
    rows = list(
        zip(*(group[key] for key in ("seeds", "outcomes", "steps", "returns")), strict=True)
    )
    rows = [(s, to, n, r) for s, o, n, r in rows if (to := keep(s, o)) is not None]
    for key, values in zip(
        ("seeds", "outcomes", "steps", "returns"), zip(*rows, strict=True), strict=True
    ):
        group[key] = list(values)
    group["outcomes"] = "".join(group["outcomes"])
    return {key: value for key, value in document.items() if key not in SCORES}


def test_the_honest_card_is_verified(honest: Document, tmp_path: Path) -> None:
    found = check(tmp_path, honest)
    assert (found.standing, found.left_out) == ("equal", "")


@pytest.mark.parametrize("letter", [None, "-", "E"])
def test_a_card_that_hides_its_failures_is_refuted_and_says_what_it_hides(
    honest: Document, tmp_path: Path, letter: str | None
) -> None:
    failures = honest["trials"][0]["outcomes"].count("F")
    found = check(tmp_path, forged(honest, lambda _, o: letter if o == "F" else o))
    assert found.standing == "refuted"
    missing, errors = (0, failures) if letter == "E" else (failures, 0)
    assert found.left_out.startswith(
        f"Of 100 planned trials {missing} are missing from the card and {errors} are errors: had "
        f"all of these failed, its rate would be {100 - failures}.0 %, not 100.0 %."
    )
    assert found.left_out in found.sentence
    assert f"of {found.rerun.unjudged} of which it has no outcome" in found.sentence


def test_a_card_that_calls_failures_done_is_refuted(honest: Document, tmp_path: Path) -> None:
    found = check(tmp_path, forged(honest, lambda _, o: "D" if o == "F" else o))
    assert found.standing == "refuted"


def test_a_few_that_are_missing_keep_a_card_from_being_verified(
    honest: Document, tmp_path: Path
) -> None:
    cut = honest["trials"][0]["seeds"][honest["trials"][0]["outcomes"].index("F")]
    document = forged(honest, lambda seed, o: None if seed == cut else o)
    seed = next(s for s in range(99) if cut not in drawn_by(tmp_path, document, s))
    found = check(tmp_path, document, sample=20, sample_seed=seed)
    assert found.equal == found.sampled
    assert found.standing != "equal"
    assert "1 are missing" in found.sentence


def drawn_by(path: Path, document: Document, seed: int) -> set[int]:
    from hocket.runs.checks.card_plan import CardPlan

    (path / "card.json").write_text(json.dumps(document))
    card = Card.load(path / "card.json")
    config = config_for(card, EvalConfig(env=(ENV,), policy=POLICY, lanes=1))
    return {trial.seed for trial in CardPlan.of(card, config).drawn(20, seed)}


def test_errors_of_an_honest_card_do_not_refute_it(honest: Document, tmp_path: Path) -> None:
    document = forged(honest, lambda seed, o: "E" if seed % 4 == 0 else o)
    found = check(tmp_path, document, sample=100)
    assert found.standing in ("agrees", "undecided")
    assert "25 are errors" in found.sentence


def test_starts_that_are_not_of_the_plan_are_refused(honest: Document, tmp_path: Path) -> None:
    document = forged(honest, lambda _, o: o if o == "S" else None)
    document["config"]["episodes"] = len(document["trials"][0]["seeds"])
    with pytest.raises(UsageError, match=r"trials? of the card are not of its plan, which is each"):
        check(tmp_path, document)


def test_a_flipped_letter_is_found_by_a_seed_that_nobody_knew(
    honest: Document, tmp_path: Path
) -> None:
    known = drawn_by(tmp_path, honest, 0)
    document = forged(honest, lambda seed, o: o if seed in known else "S")
    assert check(tmp_path, document, sample_seed=None, sample=60).standing == "refuted"


def test_a_lucky_window_of_starts_is_found_by_fresh_ones(honest: Document, tmp_path: Path) -> None:
    outcomes = honest["trials"][0]["outcomes"]
    best = max(range(85), key=lambda first: outcomes[first : first + 15].count("S"))
    window = range(3 + best, 3 + best + 15)
    document = forged(honest, lambda seed, o: o if seed in window else None)
    document["config"] |= {"seed": window[0], "episodes": 15}
    alone = check(tmp_path, document)
    assert (alone.standing, alone.sampled) == ("equal", 15)
    found = check(tmp_path, document, fresh=200, sample_seed=None)
    assert found.of_sample == "equal"
    assert found.of_fresh in ("refuted", "undecided")
    assert found.standing == found.of_fresh
    assert "Verified: all 15" in found.sentence
    assert "on 200 fresh starts: " in found.sentence


def test_fresh_starts_are_beyond_the_plan_and_agree_with_an_honest_card(
    honest: Document, tmp_path: Path
) -> None:
    found = check(tmp_path, honest, fresh=300, within=0.25)
    assert (found.of_sample, found.of_fresh) == ("equal", "agrees")
    assert found.standing == "agrees"


def test_a_run_that_stopped_when_it_was_decided_is_verified_and_said_to_be_biased(
    honest: Document, tmp_path: Path
) -> None:
    document = forged(honest, lambda seed, o: o if seed < 43 else None)
    document["config"] |= {"until": "decided", "against": "/no/such/run"}
    found = check(tmp_path, document)
    assert found.standing == "equal"
    assert "The run stopped after 40, once a comparison was decided" in found.sentence
    cut = check(tmp_path, forged(document, lambda _, o: o if o == "S" else None))
    assert cut.standing == "refuted"


def test_a_task_that_is_left_out_counts_as_failed(tmp_path: Path) -> None:
    env = "support.carded:Rooms"
    hocket.evaluate(env=env, policy=POLICY, out=tmp_path / "run", episodes=30, lanes=1)
    write_card(tmp_path / "run", tmp_path)
    document = json.loads((tmp_path / "card.json").read_text())
    document["trials"] = [group for group in document["trials"] if group["task"] == "open"]
    document = {key: value for key, value in document.items() if key not in SCORES}
    (tmp_path / "card.json").write_text(json.dumps(document))
    card = Card.load(tmp_path / "card.json")
    config = config_for(card, EvalConfig(env=(env,), policy=POLICY, lanes=1))
    found = check_card(card, config, sample=40, sample_seed=2)
    assert found.standing == "refuted"
    assert "Of 60 planned trials 30 are missing" in found.sentence


def test_a_longer_limit_than_the_tasks_own_is_told_before_anything_runs(
    honest: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = copy.deepcopy(honest)
    document["config"] |= {"max_steps": 30, "replan": 2}
    (tmp_path / "card.json").write_text(json.dumps(document))
    given = ["verify", str(tmp_path / "card.json"), "--env", ENV, "--lanes", "1"]
    main([*given, "--policy", POLICY, "--sample", "2"])
    told = capsys.readouterr()
    assert "settings that are not the defaults: replan 2, max_steps 30." in told.err
    assert "chunks replan: 2 here, 3 on the card" in told.out


MALFORMED: dict[str, Callable[[Document], Any]] = {
    "rate": lambda d: d["overall"].update(rate=5),
    "task rate": lambda d: d["tasks"][0].update(rate=1.0),
    "suite n": lambda d: d["suites"][0].update(n=7),
    "negative n": lambda d: d["overall"].update(n=-4),
    "successes": lambda d: d["overall"].update(successes=100),
    "complete": lambda d: d.update(complete="yes"),
    "planned": lambda d: d.update(planned=1000),
    "infinite steps": lambda d: d["trials"][0]["steps"].__setitem__(0, 1e400),
    "negative steps": lambda d: d["trials"][0]["steps"].__setitem__(0, -1),
    "steps as text": lambda d: d["trials"][0]["steps"].__setitem__(0, "3"),
    "a huge return": lambda d: d["trials"][0]["returns"].__setitem__(0, 10**400),
    "a return that is true": lambda d: d["trials"][0]["returns"].__setitem__(0, True),
    "no number": lambda d: d["trials"][0]["returns"].__setitem__(0, float("nan")),
    "a seed of 1e400": lambda d: d["trials"][0]["seeds"].__setitem__(0, 1e400),
    "a half seed": lambda d: d["trials"][0]["seeds"].__setitem__(0, 3.5),
    "a trial twice": lambda d: d["trials"].append(d["trials"][0]),
    "a pending trial twice": lambda d: d["trials"].append(
        {**d["trials"][0], "outcomes": "-" * 100, "steps": [None] * 100}
    ),
    "a letter too few": lambda d: d["trials"][0].update(outcomes="S"),
    "a letter that is none": lambda d: d["trials"][0].update(outcomes="X" * 100),
    "letters that mean something else": lambda d: d["letters"].update(F="success"),
    "a task of no name": lambda d: d["trials"][0].update(task=["a"]),
    "a repeat below 0": lambda d: d["trials"][0].update(repeat=-1),
    "trials as text": lambda d: d.update(trials="SSS"),
    "a list as config": lambda d: d.update(config=[1]),
    "no env": lambda d: d["config"].update(env=[]),
    "an env as text": lambda d: d["config"].update(env=ENV),
    "a policy of no name": lambda d: d["config"].update(policy={}),
    "settings as a list": lambda d: d["config"].update(env_config=[1]),
    "a trillion starts": lambda d: d["config"].update(episodes=10**12),
    "a seed below 0": lambda d: d["config"].update(seed=-1),
    "provenance as text": lambda d: d.update(provenance="mine"),
    "checks of no number": lambda d: d.update(checks={"made": "many", "differed": 0}),
    "checks as a list": lambda d: d.update(checks=[3]),
    "a version that is none": lambda d: d.update(hocket=[1]),
    "an exactness that is none": lambda d: d.update(exactness=["bitwise"]),
    "a deep nest": lambda d: d.update(provenance={"a": nested(60)}),
    "another format": lambda d: d.update(format=99),
}


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_card_is_refused_in_words(
    honest: Document, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = copy.deepcopy(honest)
    MALFORMED[name](document)
    (tmp_path / "card.json").write_text(json.dumps(document))
    given = ["verify", str(tmp_path / "card.json"), "--env", ENV, "--policy", POLICY]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("hocket: ")
    assert "Traceback" not in said
    assert len(said) < 600


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"hocket": ' * 100_000, "\xff\xfe", "NaN", "{}", "3", "9" * 5000],
)
def test_a_file_that_is_no_card_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunFolderError):
        Card.load(tmp_path / "card.json")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "card.json", "wb") as file:
        file.truncate(10**10)
    with pytest.raises(RunFolderError, match="larger than a card may be"):
        Card.load(tmp_path / "card.json")


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3.5, 5, 10**12, 10**400, 1e308, float("inf"), float("nan")),
    *("", "S", "-", "x:y", "/etc/passwd", "support.carded:Rooms", "\ud800", "\x1b[31m", "a" * 5000),
    *([], {}, [1], {"a": 1}, [[]], ["S"], {"size": 3}, nested(40)),
]


def mutated(document: Document, rng: random.Random) -> Document:
    """The card with something in it replaced, left out, doubled or changed over."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.85:
                place = inner
                continue
            way = rng.random()
            if way < 0.15:
                del place[key]
            elif way < 0.25 and isinstance(place, list):
                place.append(copy.deepcopy(inner))
            elif way < 0.35 and isinstance(inner, str):
                place[key] = "".join(rng.choice("SFED-") for _ in inner)
            else:
                place[key] = copy.deepcopy(rng.choice(VALUES))
            break
    return document


SEEDS = range(250)


def test_no_mutation_of_a_card_raises_anything_but_words_or_is_verified(
    honest: Document, tmp_path: Path
) -> None:
    small = forged(honest, lambda seed, o: o if seed < 11 else None)
    small["config"]["episodes"] = 8
    (tmp_path / "small.json").write_text(json.dumps(small))
    true = Card.load(tmp_path / "small.json")
    kept = true.to_json()
    words: list[str] = []
    checked = 0
    for seed in SEEDS:
        document = mutated(kept, random.Random(seed))
        try:
            found = check(tmp_path, document, sample=8)
        except HocketError as error:
            words.append(str(error))
            continue
        checked += 1
        json.dumps([found.sentence, *found.differences]).encode()
        if found.standing == "equal":
            again = Card.load(tmp_path / "card.json")
            assert set(again.trials) == set(true.trials), seed
            for trial, episode in true.episodes.items():
                assert again.episodes[trial].outcome is episode.outcome, seed
                assert again.episodes[trial].steps == episode.steps, seed
            assert again.report.overall == true.report.overall, seed
    assert all(words)
    assert len(words) > len(SEEDS) / 4
    assert checked > len(SEEDS) / 10
