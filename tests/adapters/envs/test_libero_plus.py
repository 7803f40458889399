"""LIBERO-Plus and LIBERO-PRO, by packages and folders that are laid out as theirs are."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.adapters.envs.libero import SUITES
from hocket.adapters.envs.libero.plus import LiberoPlus, LiberoPro, Variant
from hocket.errors import ConfigError, UnknownNameError
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from support.interpreters import SIMULATORS, interpreter
from support.libero_venv import DATA, NEEDS_LIBERO, PYTHON, ROOT
from support.processes import DEADLINE_S, wait_until

FORK = Path(__file__).parents[2] / "support" / "libero_plus"
SUITE = "libero_object"
KINDS = {
    "Camera Viewpoints": "_view_{}_0_100_0_0_initstate_0",
    "Sensor Noise": "_view_0_0_100_0_0_initstate_0_noise_{}",
    "Robot Initial States": "_view_0_0_100_0_0_initstate_{}",
    "Background Textures": "_table_{}",
    "Light Conditions": "_light_{}",
    "Language Instructions": "_language_{}_view_0_0_100_0_0_initstate_0",
    "Objects Layout": "_add_{}",
}


def lay_out(root: Path, counts: dict[str, int]) -> list[dict[str, Any]]:
    """A package and data as theirs, and what its list says."""
    shutil.copytree(FORK, root / "package")
    entries = []
    for kind, count in counts.items():
        for k in range(count):
            base = SUITES[SUITE][k % len(SUITES[SUITE])]
            entries.append((kind, base, base + KINDS[kind].format(k + 1)))
    random.Random(3).shuffle(entries)
    listed = [
        {"id": i, "name": name, "category": kind, "difficulty_level": i % 5 + 1 if i % 9 else None}
        for i, (kind, _, name) in enumerate(entries, 1)
    ]
    place = root / "package" / "libero" / "libero" / "benchmark" / "task_classification.json"
    place.write_text(json.dumps({SUITE: listed}))
    data = root / "data"
    for folder in ("assets", "bddl_files"):
        (data / folder).mkdir(parents=True)
    starts = data / "init_files" / SUITE
    starts.mkdir(parents=True)
    for number, base in enumerate(SUITES[SUITE]):
        save(starts / f"{base}.pruned_init", np.full((2, 3), [[number], [-1.0]]))
    for kind, _, name in entries:
        if kind == "Objects Layout":
            own = data / "init_files" / "libero_newobj" / SUITE / f"{name}.pruned_init"
            own.parent.mkdir(parents=True, exist_ok=True)
            save(own, np.full(3, 77.0))
    return listed


def save(path: Path, states: Any) -> None:
    """As older torch writes it: a pickle."""
    import torch

    with io.BytesIO() as buffer:
        torch.save(states, buffer)
        path.write_bytes(buffer.getvalue())


def python_of_theirs(root: Path) -> str:
    """An interpreter that has the package."""
    python = interpreter(root / "venv", *SIMULATORS)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    (site / "theirs.pth").write_text(f"{root / 'package'}\n")
    return python


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    listed = lay_out(tmp_path, {kind: 3 + 2 * i for i, kind in enumerate(KINDS)})
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(tmp_path / "data"))
    return listed


def test_a_variant_is_made_of_the_task_that_its_name_begins_with() -> None:
    for suite, tasks in SUITES.items():
        for task in tasks:
            for change in ("", *(kind.format(7) for kind in KINDS.values()), "_level3_sample2"):
                made = Variant(suite=suite, name=task + change, number=1, factor="", level=None)
                assert made.base == task
                assert made.has_own_start == change.startswith(("_add", "_level"))


def test_every_variant_is_one_trial_with_its_factor_level_prompt_and_start(
    fork: list[dict[str, Any]], tmp_path: Path
) -> None:
    python = python_of_theirs(tmp_path)
    report = hocket.evaluate(
        env="libero-plus:object",
        env_python=python,
        policy="zero",
        episodes=1000,
        lanes=3,
        record="numbers",
        out=tmp_path / "run",
        env_config={"max_steps": 20, "settle_steps": 2, "size": 16},
    )
    assert report.overall.n == len(fork)
    planned = {kind: [one for one in fork if one["category"] == kind] for kind in KINDS}
    assert {score.task: score.n for score in report.tasks} == {
        k: len(v) for k, v in planned.items()
    }
    for episode in report.episodes:
        entry = planned[episode.trial.task][episode.trial.seed]
        told = dict(episode.told)
        assert (told["variant"], told.get("level")) == (entry["id"], entry["difficulty_level"])
    firsts = [row for row in load_steps(tmp_path / "run").to_pylist() if row["step"] == 0]
    assert len(firsts) == len(fork)
    for row in firsts:
        _, kind, seed = row["trial"].split("/")
        entry = planned[kind][int(seed)]
        made = Variant(suite=SUITE, number=0, factor="", level=None, name=entry["name"])
        start = 77.0 if made.has_own_start else SUITES[SUITE].index(made.base)
        said = " ".join(entry["name"].split("_"))
        said = f"play {entry['name']}" if kind == "Language Instructions" else said
        assert (row["prompt"], row["state"][0]) == (said, start)
    more = hocket.evaluate(
        env="libero-plus:object",
        env_python=python,
        policy="zero",
        episodes=2,
        seed=4,
        lanes=1,
        out=tmp_path / "part",
        env_config={"max_steps": 1},
    )
    assert Counter(e.trial.task for e in more.episodes) == {
        kind: min(2, len(planned[kind]) - 4) for kind in KINDS if len(planned[kind]) > 4
    }


def test_without_the_package_of_theirs_it_is_said_what_helps(tmp_path: Path) -> None:
    config = LiberoPlus.Config()
    with pytest.raises(ConfigError, match=r"not LIBERO-Plus'.*--env-python.*--env.clean.*variants"):
        LiberoPlus("object", config).tasks()
    with pytest.raises(UnknownNameError, match="Did you mean 'spatial'"):
        LiberoPlus("spatal", config)
    for wrong in ({"render": "fast"}, {"hard_reset": True}, {"start_scheme": "lerobot"}):
        with pytest.raises(ConfigError, match=r"clean|one start"):
            LiberoPlus.Config(**wrong)
    LiberoPlus.Config(clean=True, render="fast")
    for text in ("[", "[]", '{"libero_object": [{"name": "x"}]}'):
        (tmp_path / "list.json").write_text(text)
        with pytest.raises(ConfigError, match="no list of variants"):
            LiberoPlus("object", LiberoPlus.Config(variants=str(tmp_path / "list.json"))).tasks()
    other = [{"name": "dance_table_1", "id": 1, "category": "x", "difficulty_level": 1}]
    (tmp_path / "list.json").write_text(json.dumps({SUITE: other}))
    with pytest.raises(ConfigError, match="'dance' is made of no task"):
        LiberoPlus("object", LiberoPlus.Config(variants=str(tmp_path / "list.json"))).tasks()


def test_a_folder_of_libero_pro_is_a_suite(
    fork: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "data" / "bddl_files" / "libero_goal_lan"
    suite = LiberoPro("goal_lan", LiberoPro.Config())
    with pytest.raises(ConfigError, match=r"no task files in .*libero_goal_lan"):
        suite.tasks()
    place.mkdir()
    (place / "turn_on_the_stove.bddl").write_text("(define (:language Light\n the stove))")
    (place / "open_it.bddl").write_text("(define)")
    assert [(one.name, one.prompt, one.max_steps) for one in suite.tasks()] == [
        ("open_it", "open it", 300),
        ("turn_on_the_stove", "Light the stove", 300),
    ]
    with pytest.raises(UnknownNameError, match="libero-pro:spatial_swap"):
        LiberoPro("goal", LiberoPro.Config())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_trials_killed_five_times_and_resumed_are_each_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = lay_out(tmp_path, dict(zip(KINDS, (150, 140, 130, 120, 140, 160, 160), strict=True)))
    monkeypatch.setenv("HOCKET_LIBERO_DATA", str(tmp_path / "data"))
    folder = tmp_path / "run"
    new = ["eval", "--env", "libero-plus:object", "--env-python", python_of_theirs(tmp_path)]
    new += ["--policy", "zero", "--episodes", "500", "--lanes", "3", "--env.max-steps", "20"]
    new += ["--env.size", "16", "--out", str(folder)]

    def ended() -> int:
        if not (folder / "ledger.sqlite").exists():
            return 0
        with LedgerView.open(folder) as ledger:
            return len(ledger.episodes())

    drawn = random.Random(random.randrange(1 << 30))
    for kill in range(5):
        words = ["resume", str(folder)] if kill else new
        process = subprocess.Popen(
            [sys.executable, "-m", "hocket", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        enough = min(ended() + drawn.randint(20, 120), 990 + kill)
        wait_until(lambda: ended() >= enough, timeout_s=300)  # noqa: B023
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    report = hocket.resume(folder)
    assert report.complete
    assert (report.overall.n, report.overall.errors) == (1000, 0)
    told = [dict(episode.told) for episode in report.episodes]
    assert sorted(one["variant"] for one in told) == [one["id"] for one in listed]
    by_id = {one["id"]: one for one in listed}
    for episode, one in zip(report.episodes, told, strict=True):
        assert by_id[one["variant"]]["category"] == episode.trial.task


class TestInLiberosInterpreter:
    pytestmark = NEEDS_LIBERO

    def test_a_variant_without_a_change_is_seen_as_the_clean_arm_shows_it(
        self, tmp_path: Path
    ) -> None:
        script = ROOT / "tests" / "support" / "libero_checks.py"
        done = subprocess.run(
            [str(PYTHON), str(script), "an_unchanged_variant_equals_its_task"],
            env={**os.environ, "HOCKET_LIBERO_DATA": str(DATA), "PYTHONPATH": str(ROOT / "src")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr[-3000:]
