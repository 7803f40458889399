from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import hocket
from hocket.core.events import WorkerChanged
from hocket.errors import ConfigError
from hocket.results.arms import ArmTable
from hocket.runs.arms import load_jobs
from hocket.runs.evaluation import run_jobs
from support.heard import Heard

SHARED = {"env": "toy:count", "policy": "scripted", "episodes": 4, "lanes": 2, "video": "none"}


def write(tmp_path: Path, runs: dict[str, Any]) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"shared": SHARED, "runs": runs}))
    return path


def make(path: Path, folder: Path) -> tuple[list[Any], dict[str, Heard]]:
    logs: dict[str, Heard] = {}

    def follow(name: str) -> list[Heard]:
        logs[name] = Heard()
        return [logs[name]]

    table = run_jobs(load_jobs(path), folder, readers=follow)
    assert (folder / "jobs.json").exists()
    return list(table.arms), logs


def test_every_job_has_a_run_folder_and_equals_the_run_made_alone(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": {}, "b": {"seed": 10}, "c": {"env": "toy:image"}})
    results, _ = make(path, tmp_path / "out")
    alone = hocket.evaluate(**{**SHARED, "seed": 10})
    assert [r.report.overall.n for r in results] == [4, 4, 4]
    assert results[1].report.overall == alone.overall
    for name in "abc":
        assert (tmp_path / "out" / name / "report.html").exists()
    page = (tmp_path / "out" / "jobs.html").read_text()
    assert "a/report.html" in page
    assert "toy:image" in page
    assert ArmTable(arms=tuple(results)).table().text().count("\n") >= 4


def test_the_second_run_finds_the_workers_of_the_first_up(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": {}, "b": {"seed": 10}})
    results, logs = make(path, tmp_path / "out")
    assert all(r.error is None for r in results)
    ups = {
        name: [e.lanes for e in log.of(WorkerChanged) if e.state == "up"]
        for name, log in logs.items()
    }
    assert len(ups["a"]) == len(ups["b"]) == 2
    first = logs["b"].of(WorkerChanged)[0]
    assert first.time < 0.1  # Told at once: nothing had to start.


@pytest.mark.slow
def test_a_job_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    runs = {"a": {}, "broken": {"env_config": {"raise_in_init": True}}, "c": {"seed": 3}}
    path = write(tmp_path, runs)
    results, _ = make(path, tmp_path / "out")
    assert [r.report is not None for r in results] == [True, False, True]
    assert "This toy cannot be built" in results[1].error
    assert "This toy cannot be built" in (tmp_path / "out" / "jobs.html").read_text()
    again, logs = make(path, tmp_path / "out")
    assert [r.report is not None for r in again] == [True, False, True]
    assert again[0].report.overall == results[0].report.overall
    assert logs["a"].events == []  # A finished run stays.


def test_a_job_whose_settings_changed_is_refused(tmp_path: Path) -> None:
    make(write(tmp_path, {"a": {}}), tmp_path / "out")
    (result,), _ = make(write(tmp_path, {"a": {"seed": 5}}), tmp_path / "out")
    assert "another seed" in result.error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runs: {a: {episods: 3, env: toy:count, policy: scripted}}", "episodes"),
        ("runs: {}", "needs 'runs'"),
        ("rons: {a: {}}", "rons"),
        ("runs: {a: {env: toy, policy: zero}}\nbase: b", "base 'b' is none of a"),
        ("runs: {a/b: {env: toy:count, policy: scripted}}", "cannot be a run's name"),
    ],
)
def test_a_bad_file_is_refused_before_anything_runs(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_jobs(path)
