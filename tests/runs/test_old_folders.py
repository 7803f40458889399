"""Run folders of earlier versions go on as if nothing had changed: `tests/fixtures/run-VERSION`
holds one that was finished and one that was killed, both of the suite `toy`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hocket
from hocket.results.compare import compare_runs
from hocket.results.side import Side
from hocket.runs.export import ExportConfig, export_run
from hocket.runs.run import rebuild_report
from hocket.runs.verify import verify

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = sorted(folder.name for folder in FIXTURES.glob("run-*"))


@pytest.fixture(params=VERSIONS)
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, since whoever reads a ledger may bring it up to date."""
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / "runs"))


def test_a_finished_run_is_reported_as_it_was(folders: Path) -> None:
    before = (folders / "complete" / "report.json").read_text()
    report = rebuild_report(folders / "complete")
    assert report.complete
    assert (folders / "complete" / "report.json").read_text() == before


def test_a_killed_run_is_finished_and_nothing_runs_twice(folders: Path) -> None:
    from hocket.records.ledger.view import LedgerView

    with LedgerView.open(folders / "killed") as ledger:
        ended = {episode.trial.id: episode for episode in ledger.episodes()}
    assert 0 < len(ended) < 24
    report = hocket.resume(folders / "killed")
    assert report.complete
    found = {episode.trial.id: episode for episode in report.episodes}
    assert len(found) == 24
    assert {trial: found[trial] for trial in ended} == ended
    fresh = hocket.evaluate(
        env="toy", policy="scripted", episodes=4, lanes=1, env_config={"step_s": 0.0}
    )
    assert {e.trial.id: e.total_reward for e in fresh.episodes} == {
        trial: episode.total_reward for trial, episode in found.items()
    }


def test_old_and_new_runs_are_compared(folders: Path) -> None:
    new = folders / "new"
    hocket.evaluate(env="toy", policy="scripted", episodes=1, lanes=2, out=new, video="none")
    comparison = compare_runs(Side.open(folders / "complete"), Side.open(new))
    assert "n = 6 pairs" in comparison.sentence


def test_recorded_steps_are_replayed_and_exported(folders: Path, tmp_path: Path) -> None:
    assert verify(folders / "complete", "toy/count/0").difference is None
    target = tmp_path / "eval_info.json"
    export_run(folders / "complete", "eval_info", target, ExportConfig())
    assert target.is_file()
