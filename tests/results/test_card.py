from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hocket.core.data import Trial
from hocket.errors import RunFolderError
from hocket.results.card import Card
from hocket.results.card_text import eval_results, markdown
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.recorded import open_recorded
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, record_run


def outcome(trial: Trial) -> Any:
    return (SUCCESS, SUCCESS, FAILURE, ERROR)[trial.seed % 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record_run(tmp_path / "run", plan(["pull", "push"], 8), outcome, ended=14)


def test_a_card_has_a_letter_for_every_trial_and_gives_the_same_numbers_back(
    folder: Path, tmp_path: Path
) -> None:
    card = Card.of(open_recorded(folder))
    card.save(tmp_path / "card.json")
    document = json.loads((tmp_path / "card.json").read_text())
    assert [group["outcomes"] for group in document["trials"]] == ["SSFESSF-", "SSFESSF-"]
    again = Card.load(tmp_path / "card.json")
    for name in ("overall", "suites", "tasks", "config", "exactness", "complete"):
        assert getattr(again.report, name) == getattr(card.report, name)
    assert sorted(again.trials) == sorted(card.trials)
    assert again.to_json()["overall"] == document["overall"]


def test_a_run_is_paired_with_a_card_as_with_the_folder_it_is_of(
    folder: Path, tmp_path: Path
) -> None:
    Card.of(open_recorded(folder)).save(tmp_path / "card.json")
    other = record_run(tmp_path / "other", plan(["pull", "push"], 8), lambda _: SUCCESS)
    by_card = compare_runs(Side.open(tmp_path / "card.json"), Side.open(other))
    by_folder = compare_runs(Side.open(folder), Side.open(other))
    assert by_card.comparison.overall == by_folder.comparison.overall
    assert by_card.pairs == by_folder.pairs
    assert by_card.excluded == by_folder.excluded


@pytest.mark.parametrize(
    "change",
    [
        {"format": "hocket-card 2"},
        {"trials": [{"suite": "toy", "task": "x"}]},
        {"trials": 3},
        {"exactness": "perfect"},
        {"config": {"env": "toy", "policy": 3}},
        {"config": {"env": ["toy"], "policy": "x", "env_config": [1]}},
        {"overall": {"rate": 0.99}},
    ],
)
def test_a_card_that_says_what_cannot_be_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    document = {**Card.of(open_recorded(folder)).to_json(), **change}
    (tmp_path / "card.json").write_text(json.dumps(document))
    with pytest.raises(RunFolderError, match="card"):
        Card.load(tmp_path / "card.json")


def test_results_for_the_hub_have_the_form_that_it_reads(folder: Path) -> None:
    card = Card.of(open_recorded(folder))
    entries = yaml.safe_load(eval_results(card, "toy", dataset="o/toys", date="2026-01-31"))
    assert [entry["dataset"] for entry in entries] == [
        {"id": "o/toys", "task_id": task} for task in ("overall", "pull", "push")
    ]
    assert {"dataset", "value", "date", "notes"} == set(entries[0])
    assert entries[1]["value"] == pytest.approx(100 * 4 / 6, abs=1e-4)
    assert "n = 6" in entries[1]["notes"]
    assert "1 errors" in entries[1]["notes"]


def test_names_in_a_card_cannot_write_markdown(tmp_path: Path) -> None:
    trials = plan(["a|b](http://x)<img>"], 2)
    folder = record_run(tmp_path / "run", trials, lambda _: SUCCESS)
    text = markdown(Card.of(open_recorded(folder)))
    (row,) = [line for line in text.splitlines() if "a\\|b" in line]
    assert row.replace("\\|", "").count("|") == 6
    assert "\\<img\\>" in row
    assert "](http" not in text.replace("\\](", "")
