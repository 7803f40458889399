"""`hocket compare` and `hocket report`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.cli import OK, USAGE, main
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, record_run

TRIALS = plan(["push", "reach"], 6)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    record_run(tmp_path / "a", TRIALS, lambda _: SUCCESS, config={"policy": "new"})
    record_run(tmp_path / "b", TRIALS, lambda t: SUCCESS if t.seed % 2 else FAILURE)
    record_run(tmp_path / "short", TRIALS[:4], lambda _: SUCCESS)
    record_run(tmp_path / "killed", TRIALS, lambda t: SUCCESS if t.seed else ERROR, ended=5)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_verdict_is_said_in_words(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b"]) == OK
    said = capsys.readouterr().out
    # Six seeds, and both tasks alike at each.
    assert "Undecided at n = 12 pairs (Tango's score test by seed, p = 0.14)" in said
    assert "a: a (new)" in said
    assert "+50.0" in said


def test_json_is_all_that_is_printed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--json", "--tasks-as", "clusters"]) == OK
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert found["overall"]["difference"] == 0.5
    assert found["pairs"] == {"both": 6, "only_a": 6, "only_b": 0, "neither": 0}
    assert found["claim"] == "about new tasks like these"


def test_refusal_says_what_differs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "short"]) == USAGE
    assert "only a has seeds 2 to 5" in capsys.readouterr().err
    assert main(["compare", "a", "short", "--common"]) == OK
    assert "Only the 4 trials that both planned" in capsys.readouterr().out


def test_page_is_written_where_it_is_asked_for(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "a", "b", "--html", "out/page.html"]) == OK
    assert "out/page.html" in capsys.readouterr().out
    assert (runs / "out" / "page.html").read_text().startswith("<!doctype html>")


def test_missing_run_is_a_sentence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "nowhere"]) == USAGE
    assert "nowhere" in capsys.readouterr().err


def test_report_of_a_killed_run_is_made_from_its_ledger(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not (runs / "killed" / "report.json").exists()
    assert main(["report", "killed"]) == OK
    assert "INCOMPLETE: 5 of 12 trials" in capsys.readouterr().out
    assert json.loads((runs / "killed" / "report.json").read_text())["overall"]["errors"] == 2
    assert "5 of 12 planned trials" in (runs / "killed" / "report.html").read_text()
    assert not (runs / "killed" / "bundle.html").exists()
    assert main(["report", "killed", "--bundle", "--bundle-mb", "3"]) == OK
    assert "Bundle: killed/bundle.html" in capsys.readouterr().out
    assert "5 of 12 planned trials" in (runs / "killed" / "bundle.html").read_text()
