"""The front page of a folder with runs: what a line says, of what it is made, and comparisons."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hocket.core.data import Outcome, Trial
from hocket.errors import HocketError
from hocket.results.recorded import open_recorded
from hocket.watch import folder_view
from hocket.watch.cells import Cells
from hocket.watch.folder_view import FolderView
from hocket.watch.run_view import RunView
from support.recorded_runs import ERROR, FAILURE, SUCCESS, plan, record_run

TRIALS = plan(["push", "reach"], 8)


def mixed(trial: Trial) -> Outcome:
    return (SUCCESS, FAILURE, SUCCESS, ERROR)[trial.seed % 4]


def reported(folder: Path, outcome: Any = mixed, **config: Any) -> Path:
    record_run(folder, TRIALS, outcome, config=config, about={"code": {"hocket": {"commit": "c"}}})
    open_recorded(folder).report.save(folder)
    return folder


def lines(root: Path) -> dict[str, Any]:
    view = FolderView(root)
    view.poll()
    return {line["name"]: line for line in view.snapshot()["runs"]}


def test_a_line_is_the_same_from_a_report_as_from_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = reported(tmp_path / "run", replan=4)
    (ledger,) = lines(tmp_path).values()
    with monkeypatch.context() as patch:
        patch.setattr(folder_view, "Cells", None)  # nothing but the report is read
        (report,) = lines(tmp_path).values()
        assert report["rate"]["n"] == 12
        assert report["config"]["replan"] == 4
    os.utime(run / "report.json", (0, 0))
    (ledger,) = lines(tmp_path).values()
    for name in ("done", "planned", "errors", "code"):
        assert report[name] == ledger[name]
    assert report["rate"].items() <= ledger["rate"].items()


def test_many_runs_are_told_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        reported(tmp_path / name)
    monkeypatch.setattr(folder_view, "_AT_ONCE_S", -1.0)
    view = FolderView(tmp_path)
    told = view.poll()
    assert told is not None
    assert (told["unread"], told["runs"], view.poll_s) == (3, [], 0.0)
    monkeypatch.setattr(folder_view, "_AT_ONCE_S", 60.0)
    told = view.poll()
    assert told is not None
    assert ({one["name"] for one in told["runs"]}, told["unread"]) == ({"a", "b", "c"}, 0)
    assert view.poll() is None, "nothing has changed"
    (tmp_path / "a" / "ledger.sqlite").unlink()
    told = view.poll()
    assert told is not None
    assert told["gone"] == ["a"]


def test_two_runs_are_compared_by_the_paired_test(tmp_path: Path) -> None:
    reported(tmp_path / "a", lambda _: SUCCESS)
    reported(tmp_path / "b")
    found = FolderView(tmp_path).compare("a", "b")
    assert (found["kind"], found["runs"]) == ("compared", ["a", "b"])
    assert found["hero"]["big"] == ("+33.3", " points")
    assert "a is better" in found["hero"]["verdict"][1] or "n = 12" in found["hero"]["verdict"][1]
    with pytest.raises(HocketError, match="no run"):
        FolderView(tmp_path).compare("a", "../b")


def test_runs_stand_against_the_one_that_is_pinned(tmp_path: Path) -> None:
    reported(tmp_path / "a", lambda _: SUCCESS)
    reported(tmp_path / "b")
    record_run(tmp_path / "other", plan(["lift"], 3), mixed)
    found = FolderView(tmp_path).against("a", ["b", "other", "none"])["runs"]
    assert found.keys() == {"b", "other"}
    assert found["other"] is None, "it has other trials"
    assert found["b"]["difference"] == pytest.approx(-1 / 3)


def test_filmed_failures_are_not_pushed_away_by_newer_ones(tmp_path: Path) -> None:
    trials = plan(["push"], 120)
    run = record_run(tmp_path / "run", trials, lambda _: FAILURE)
    for seed in (0, 1):
        film = run / "episodes" / trials[seed].slug / "0" / "cam.mp4"
        film.parent.mkdir(parents=True)
        film.write_bytes(b"a film")
    view = RunView(run, "run")
    view.poll()
    feed = view.snapshot()["feed"]
    assert len(feed) == 40
    assert [item["cell"] for item in feed if item["films"]] == [0, 1]
    view.close()


def test_attempts_that_were_lost_are_told_with_an_episode(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", TRIALS, mixed)
    cells = Cells(run)
    cells.update()
    assert cells.lost_at(0) == {}
    cells.close()
    view = RunView(run, "run")
    view.poll()
    assert view.episode(0)["attempts"] == [(0, "S")]
    wrong = view.episode(6, 0)
    assert (wrong["outcome"], wrong["own"]) == ("E", None)
    assert view.report()["columns"]["steps"][0] == 16
    view.close()
