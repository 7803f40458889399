"""Run folders of earlier versions go on as if nothing had changed: `tests/fixtures/run-VERSION`
holds one that was finished and one that was killed, both of the suite `toy`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest

import hocket
from hocket.errors import RunFolderError
from hocket.records.ledger.view import LedgerView
from hocket.records.steps import load_steps
from hocket.results.comparing.compare import compare_runs
from hocket.results.comparing.side import Side
from hocket.results.recorded import open_recorded
from hocket.runs.checks.verify import verify
from hocket.runs.export import Choice, ExportConfig, export_run
from hocket.runs.run_folder import rebuild_report

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = sorted(folder.name for folder in FIXTURES.glob("run-*"))


@pytest.fixture(params=VERSIONS)
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, since whoever goes on with a run brings its ledger up to date."""
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / "runs"))


def rounded(plain: Any) -> Any:
    """Twelve digits of every number: the last ones are those of the library that found them."""
    if isinstance(plain, dict):
        return {key: rounded(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [rounded(value) for value in plain]
    return float(f"{plain:.12g}") if isinstance(plain, float) else plain


def test_a_finished_run_is_reported_as_it_was(folders: Path) -> None:
    before = json.loads((folders / "complete" / "report.json").read_text())
    report = rebuild_report(folders / "complete")
    assert report.complete
    after = json.loads((folders / "complete" / "report.json").read_text())
    assert rounded(after) == rounded(before)


def test_a_killed_run_is_finished_and_nothing_runs_twice(folders: Path) -> None:
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
    run, choice = folders / "complete", Choice(tasks=("count",))
    config = ExportConfig(choice=choice, workers=1)
    export_run(run, "eval_info", tmp_path / "eval_info.json", config)
    export_run(run, "lerobot", tmp_path / "dataset", config)
    info = json.loads((tmp_path / "dataset" / "meta" / "info.json").read_text())
    assert info["fps"] == 20
    assert info["total_episodes"] == 1
    assert "observation.state" in info["features"]
    export_run(run, "hdf5", tmp_path / "file.hdf5", config)
    with h5py.File(tmp_path / "file.hdf5") as file:
        assert len(file["data/demo_0/obs/state"]) == len(file["data/demo_0/actions"])


def test_what_version_1_did_not_record_is_refused_in_words(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "run-0.1" / "complete", tmp_path / "run")
    config = ExportConfig(choice=Choice(tasks=("plain",)))
    with pytest.raises(RunFolderError, match=r"older hocket .* did not record 'observation/state'"):
        export_run(run, "lerobot", tmp_path / "dataset", config)


def test_reading_writes_nothing_into_the_folder(folders: Path, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        files = [path for path in folders.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    before = content()
    for run in (folders / "complete", folders / "killed"):
        Side.open(run)
        open_recorded(run)
    verify(folders / "complete", "toy/count/0")
    config = ExportConfig(choice=Choice(tasks=("count",)), workers=1)
    export_run(folders / "complete", "lerobot", tmp_path / "dataset", config)
    assert content() == before


def test_resumed_run_of_version_1_keeps_its_rows_beside_new_ones(tmp_path: Path) -> None:
    run = shutil.copytree(FIXTURES / "run-0.1" / "killed", tmp_path / "run")
    hocket.resume(run)
    steps = load_steps(run)
    assert len(set(steps["trial"].to_pylist())) == 24
    assert 0 < steps["layout"].null_count < len(steps)
    config = ExportConfig(choice=Choice(tasks=("count",)), workers=1)
    export_run(run, "lerobot", tmp_path / "dataset", config)
    info = json.loads((tmp_path / "dataset" / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 4
