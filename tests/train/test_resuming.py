"""What a resumed run evaluates, keeps and tells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.train.learner import checkpoint
from train.test_training import records, run, same_weights

EVALUATED: dict[str, Any] = {"eval_every": 200, "eval_episodes": 3, "checkpoint_every": 1}


def evaluations(result: Any) -> list[tuple[int, float, float]]:
    return [
        (one["env_steps"], one["eval/version"], one["eval/return"])
        for one in records(result, "eval")
    ]


@pytest.mark.slow
def test_a_resumed_run_evaluates_the_versions_that_one_never_interrupted_does(
    tmp_path: Path,
) -> None:
    whole = run(tmp_path, "whole", steps=700, **EVALUATED)
    folders = checkpoint.checkpoints(whole.run)
    assert len(folders) == 3
    for newest in folders[:-1]:
        killed = tmp_path / newest.name
        shutil.copytree(whole.run, killed)
        for later in checkpoint.checkpoints(killed):
            if later.name > newest.name:
                shutil.rmtree(later)
        # The evaluation of that version had not ended either.
        log, version = killed / "metrics.jsonl", float(newest.name)
        lines = log.read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line).get("eval/version", 0.0) < version]
        log.write_text("".join(kept))
        rest = run(tmp_path, newest.name, steps=700, resume=True, **EVALUATED)
        assert evaluations(rest) == evaluations(whole)
        assert same_weights(rest.run, whole.run)


@pytest.mark.slow
def test_the_best_weights_are_not_replaced_by_worse_ones_after_a_resume(tmp_path: Path) -> None:
    first = run(tmp_path, steps=300, **EVALUATED)
    kept = first.run / "best" / "score.json"
    score = {**json.loads(kept.read_text()), "rate": 1.0, "measure": 1.0, "version": 99}
    # As if the run had done well after its newest checkpoint, and was then killed.
    kept.write_text(json.dumps(score))
    again = run(tmp_path, steps=700, lr=0.0, resume=True, **EVALUATED)
    assert json.loads(kept.read_text())["version"] == 99
    assert again.best == 1.0


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_finished_run_is_not_trained_further_by_a_resume(tmp_path: Path, mode: str) -> None:
    first = run(tmp_path, steps=200, mode=mode, **EVALUATED)
    version = checkpoint.latest(first.run).name
    told = [len(records(first, kind)) for kind in ("update", "eval")]
    for _ in range(2):
        again = run(tmp_path, steps=200, mode=mode, resume=True, **EVALUATED)
        assert again.complete
        assert again.env_steps == first.env_steps
        assert checkpoint.latest(again.run).name == version
        assert [len(records(again, kind)) for kind in ("update", "eval")] == told


def test_a_finished_run_without_evaluations_is_resumed_to_nothing(tmp_path: Path) -> None:
    first = run(tmp_path, steps=200)
    again = run(tmp_path, steps=200, resume=True)
    assert again.complete
    assert checkpoint.latest(again.run).name == checkpoint.latest(first.run).name


@pytest.mark.slow
def test_every_update_of_an_asynchronous_run_is_logged(tmp_path: Path) -> None:
    result = run(tmp_path, mode="async", steps=600, lanes=2)
    state = checkpoint.read_table(checkpoint.latest(result.run) / checkpoint.STATE)
    updates = [record["count/updates"] for record in records(result, "update")]
    assert updates == [float(n + 1) for n in range(state["version"])]


TRAIN = ["train", "--env", "toy:count", "--policy", "actor", "--reward", "env", "--lanes", "1"]


def test_weights_are_advertised_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    flags = ["--steps", "50", "--batch", "4", "--eval-every", "0", "--out", str(out)]
    assert main([*TRAIN, *flags]) == 0
    named = capsys.readouterr().out.rpartition("--policy ")[2].strip()
    assert (Path(named) / "weights.safetensors").is_file()


def test_trained_weights_on_another_task_are_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    flags = ["--steps", "50", "--batch", "4", "--eval-episodes", "2", "--out", str(out)]
    assert main([*TRAIN, *flags]) == 0
    named = ["--policy", str(out / "best"), "--lanes", "1", "--episodes", "1"]
    assert main(["eval", "--env", "toy:plain", *named, "--out", str(tmp_path / "eval")]) != 0
    told = capsys.readouterr().err
    assert "none for 'plain'" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_policy_that_does_not_move_is_warned_of(tmp_path: Path) -> None:
    result = run(tmp_path, lr=1e-9, steps=16 * 16 * 11)
    (warning,) = records(result, "warning")
    assert "hardly moved the policy" in warning["text"]
    assert not records(run(tmp_path, "other", steps=16 * 16 * 3), "warning")
