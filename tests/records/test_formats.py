"""What lies on a disk says its format; another one is refused with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hocket
from hocket.errors import RunFolderError
from hocket.records import formats
from hocket.records.run_file import load_run, save_run
from hocket.results.card import Card
from hocket.results.recorded import open_recorded
from support.recorded_runs import SUCCESS, plan, record_run

OTHERS = [None, "one", 1, 99]


@pytest.mark.parametrize("found", OTHERS)
def test_a_run_file_of_another_format_is_refused_and_a_persons_is_not(
    tmp_path: Path, found: object
) -> None:
    path = save_run(tmp_path, {"env": ["toy"]}, about={})
    assert yaml.safe_load(path.read_text())["about"]["format"] == formats.RUN.number
    assert load_run(tmp_path) == {"env": ["toy"]}
    path.write_text(yaml.safe_dump({"env": ["toy"], "about": {"format": found}}))
    for place in (tmp_path, path):
        with pytest.raises(RunFolderError, match=r"copy its run\.yaml without `about`"):
            load_run(place)
    path.write_text(yaml.safe_dump({"env": ["toy"]}))
    assert load_run(tmp_path) == {"env": ["toy"]}


def test_a_run_of_another_format_is_neither_read_nor_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_run(tmp_path / "run", plan(["push"], 2), lambda _: SUCCESS)
    newer = formats.FormatNumber(formats.RUN.noun, formats.RUN.number + 1, formats.RUN.advice)
    monkeypatch.setattr(formats, "RUN", newer)
    for use in (open_recorded, hocket.resume):
        with pytest.raises(RunFolderError, match=r"is a run of format 4; .* reads format 5 alone"):
            use(run)


@pytest.mark.parametrize("found", [None, "one", 0, 99])
def test_a_report_of_another_format_is_refused(tmp_path: Path, found: object) -> None:
    run = record_run(tmp_path / "run", plan(["push"], 2), lambda _: SUCCESS)
    document = open_recorded(run).report.to_json()
    assert document["format"] == formats.REPORT.number
    (tmp_path / "report.json").write_text(json.dumps({**document, "format": found}))
    with pytest.raises(RunFolderError, match=r"Make it again from its run \(hocket report RUN\)"):
        open_recorded(tmp_path)


@pytest.mark.parametrize("found", OTHERS)
def test_a_card_of_another_format_is_refused(tmp_path: Path, found: object) -> None:
    run = record_run(tmp_path / "run", plan(["push"], 2), lambda _: SUCCESS)
    document: dict[str, Any] = Card.of(open_recorded(run)).to_json()
    assert document["format"] == formats.CARD.number
    path = tmp_path / "card.json"
    path.write_text(json.dumps({**document, "format": found}))
    with pytest.raises(RunFolderError, match=r"Make it again from its run \(hocket card RUN\)"):
        Card.load(path)


@pytest.mark.parametrize("found", OTHERS)
def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, found: object) -> None:
    pytest.importorskip("torch")
    from hocket.train.learner import checkpoint

    checkpoint.write_folder(tmp_path / "best", {}, {checkpoint.POLICY: {"network": "x"}})
    path = tmp_path / "best" / checkpoint.POLICY
    assert json.loads(path.read_text())["format"] == formats.CHECKPOINT.number
    assert checkpoint.read_table(path) == {"network": "x"}
    path.write_text(json.dumps({"format": found, "network": "x"}))
    with pytest.raises(RunFolderError, match="Train it again"):
        checkpoint.read_table(path)
