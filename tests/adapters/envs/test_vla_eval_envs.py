"""Benchmarks of the package vla-eval as envs, in the interpreter that has it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.vla_eval import VlaEvalBenchmark
from hocket.core.data import Batch
from hocket.core.specs import PolicySpec
from hocket.errors import ConfigError, HocketError
from hocket.results.report import Report
from support.interpreters import with_packages_of
from support.libero_venv import DATA
from support.parts import needs, needs_venv, python_of

SUPPORT = Path(__file__).parents[2] / "support"
BENCH = "vla-eval:vla_eval_bench:Naming"
needs_vla_eval = needs_venv("vla-eval")


class Naming:
    """Answers with the step of each of a chunk's actions, and the picture's colour."""

    spec = PolicySpec(chunk_length=4, action_size=2, max_batch=8, batch_invariant=True)

    def __init__(self, wrong_at: int = -1) -> None:
        self._wrong_at = wrong_at

    def infer(self, batch: Batch) -> Any:
        steps = batch.arrays["observation/state"] + np.arange(4)
        colours = batch.arrays["observation/agentview"][:, -1, -1, :1].repeat(4, axis=1)
        assert all(
            row.prompt == f"colour {c[0]}" for row, c in zip(batch.rows, colours, strict=True)
        )
        colours = np.where(steps == self._wrong_at, 0, colours)
        return np.stack([steps, colours], axis=-1).astype(np.float32)

    def close(self) -> None: ...


def run(out: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, **settings: Any) -> Report:
    monkeypatch.chdir(SUPPORT)
    config = {"action_size": 2, **settings.pop("env_config", {})}
    return hocket.evaluate(
        env=BENCH,
        env_config=config,
        env_python=str(python_of("vla-eval")),
        policy=policy,
        out=out,
        **{"episodes": 3, "lanes": 2, **settings},
    )


@needs_vla_eval
def test_their_classes_are_envs_with_their_tasks_prompts_pictures_and_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path / "run", monkeypatch, Naming(), env_config={"params": '{"a": 1}'})
    assert [score.task for score in report.tasks] == ["colour 20", "colour 200"]
    assert report.overall.success.value == 1.0
    assert {episode.steps for episode in report.episodes} == {12}
    assert {dict(episode.told)["params"] for episode in report.episodes} == {1}


@needs_vla_eval
def test_only_what_they_tell_at_the_end_of_an_episode_is_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = run(tmp_path / "wrong", monkeypatch, Naming(wrong_at=7))
    assert wrong.overall.success.value == 0.0
    short = run(tmp_path / "short", monkeypatch, Naming(), env_config={"max_steps": 5})
    assert (short.overall.n, short.overall.success.value) == (6, 0.0)
    assert {episode.steps for episode in short.episodes} == {5}


@needs_vla_eval
@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("vla-eval:liberio", {}, "Did you mean 'libero'"),
        (
            "vla-eval:libero",
            {"params": '{"sweet": 1}'},
            "unexpected keyword argument 'sweet'.*suite",
        ),
        ("vla-eval:libero", {"params": "[1]"}, "must be a JSON object"),
        ("vla-eval:libero", {}, "needs torch, which this interpreter lacks.*--env-python"),
        ("vla-eval:calvin", {}, "needs calvin_env.*download_data.sh.*--env-python"),
        ("vla-eval:robocasa", {}, "needs robocasa,.*download_kitchen_assets.py.*--env-python"),
        (
            "vla-eval:robotwin",
            {"params": '{"task_name": "grab_roller"}'},
            "needs /app/RoboTwin.*_download.py.*--env-python",
        ),
        ("vla-eval:robotwin", {}, "missing a required argument: 'task_name'"),
        (BENCH, {"action_size": None}, "does not say what moves it.*action-size"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_a_sentence(
    name: str, config: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(SUPPORT)
    with pytest.raises(HocketError, match=told) as failed:
        hocket.evaluate(
            env=name,
            env_config=config,
            env_python=str(python_of("vla-eval")),
            policy="zero",
            out=tmp_path / "run",
            episodes=1,
            lanes=1,
        )
    assert "Traceback" not in str(failed.value)


def test_a_file_of_vla_evals_gives_a_class_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "libero.yaml"
    file.write_text(
        "benchmarks:\n- benchmark: vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark\n"
        "  params: {suite: libero_goal, seed: 3}\n- benchmark: other:Class\n"
    )
    config = VlaEvalBenchmark.Config(params='{"seed": 7}')
    suite = VlaEvalBenchmark(f"libero:{file}", config)
    assert suite.params == {"suite": "libero_goal", "seed": 7}
    for wrong in ("benchmarks: []", "- 1", "a: [", "benchmarks:\n- benchmark: other:Class"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="libero"):
            VlaEvalBenchmark(f"libero:{file}", config)
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        VlaEvalBenchmark("libero:none.yaml", config)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with LIBERO, vla-eval and torch, each as it is installed elsewhere."""
    return with_packages_of(tmp_path_factory.mktemp("both") / "venv", "libero", "vla-eval")


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_vla_eval
@needs_venv("libero")
@needs("libero", is_there=(DATA / "assets").is_dir(), how="set HOCKET_LIBERO_DATA to its data")
@pytest.mark.parametrize(("suite", "task"), [("libero_object", 1), ("libero_goal", 6)])
def test_episodes_of_libero_equal_those_of_their_loop_in_fresh_processes(
    both: str, suite: str, task: int, tmp_path: Path
) -> None:
    def play(kind: str, *episodes: int) -> dict[str, Any]:
        out = tmp_path / kind
        out.mkdir()
        words = [both, SUPPORT / "vla_eval_libero.py", kind, DATA, out, suite, task, *episodes]
        subprocess.run([str(word) for word in words], check=True, timeout=600)
        with np.load(out / f"{episodes[-1]}.npz") as file:
            return {key: file[key] for key in file.files}

    own = play("own", 2)
    ours = play("ours", 4, 2)  # whatever came before
    native = play("native", 4, 2)  # which draws only where somebody looks
    assert set(own) == set(ours)
    assert {"agentview", "wrist", "states"} == set(native) <= set(ours)
    for key, theirs in own.items():
        assert theirs.std() > 0
        np.testing.assert_array_equal(theirs, ours[key], err_msg=key)
        if key == "states":  # a rotation is in the middle, which they round to 32 bits
            np.testing.assert_allclose(theirs[:, 3:6], native[key][:, 3:6], atol=1e-6)
            theirs, native[key] = (np.delete(each, [3, 4, 5], 1) for each in (theirs, native[key]))
        if key in native:
            np.testing.assert_array_equal(theirs, native[key], err_msg=key)
