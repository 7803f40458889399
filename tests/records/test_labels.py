"""Labels that people give to episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.core.data import Trial
from hocket.errors import ConfigError, RunFolderError
from hocket.records.labels import add_label, labels_file, load_labels

A, B = (Trial(suite="toy", task="t", seed=seed) for seed in range(2))


def test_the_last_label_of_a_trial_counts(tmp_path: Path) -> None:
    add_label(tmp_path, A, 0, "dropped")
    add_label(tmp_path, B, 1, "own  words\n of mine ")
    add_label(tmp_path, A, 0, "missed")
    assert load_labels(tmp_path) == {A.id: "missed", B.id: "own words of mine"}


def test_no_words_take_a_label_away(tmp_path: Path) -> None:
    add_label(tmp_path, A, 0, "dropped")
    add_label(tmp_path, A, 0, " ")
    assert load_labels(tmp_path) == {}


def test_lines_that_cannot_be_read_cost_only_themselves(tmp_path: Path) -> None:
    add_label(tmp_path, A, 0, "dropped")
    with open(labels_file(tmp_path), "a") as file:
        file.write('{"trial": "x"\n[]\n{"label": "no trial"}\n{"trial": "y", "label": 3}\n')
    assert load_labels(tmp_path) == {A.id: "dropped", "y": "3"}


def test_a_folder_without_labels_has_none(tmp_path: Path) -> None:
    assert load_labels(tmp_path) == {}


def test_a_label_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 200"):
        add_label(tmp_path, A, 0, "x" * 201)
    with pytest.raises(RunFolderError, match="cannot be written"):
        add_label(tmp_path / "nowhere", A, 0, "dropped")
