"""Films of envs that cannot be shown again are made while they run, and chosen at the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core.data import Episode, Outcome, Trial, noise_seed
from hocket.core.events import ChunksExecuted, SpecLearned
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.records.answers import load_answers
from hocket.records.evidence import crash_kind, kept_evidence
from hocket.records.ledger.schema import FILMS
from hocket.records.ledger.view import LedgerView
from hocket.records.video.films import VideoPlan
from hocket.records.video.selection import VideoSelection
from hocket.results.page.report_page import FILE_NAME
from hocket.runs.evaluation import resume

ENV = """
import os, signal
import numpy as np
from gymnasium import Env, spaces

class Fated(Env):
    observation_space = spaces.Dict({
        "state": spaces.Box(-9, 9, (2,), np.float64),
        "front": spaces.Box(0, 255, (32, 32, 3), np.uint8),
    })
    action_space = spaces.Box(-1, 1, (2,), np.float64)
    control_rate = 20.0
    max_steps = 8

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return self.seen(), {}

    def seen(self):
        picture = np.full((32, 32, 3), 9 * self.steps, np.uint8)
        return {"state": np.full(2, float(self.steps)), "front": picture}

    def step(self, action):
        self.steps += 1
        if self.steps == 6:
            if self.seed % 10 == 3:
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.seed % 10 == 4:
                raise KeyError("arm")
        done = self.steps == 7 and self.seed % 5 == 0
        return self.seen(), 0.0, False, False, {"success": done}
"""
KILLED = """
import os, signal, sys
import hocket
from hocket.records.ledger.view import LedgerView
from hocket.core.events import EpisodesSealed

class Kill:
    def on(self, event):
        if isinstance(event, EpisodesSealed) and event.episodes[0].trial.seed >= 11:
            with LedgerView.open("run") as ledger:
                if len(ledger.episodes()) >= 5:
                    os.kill(os.getpid(), signal.SIGKILL)
    def close(self): ...

hocket.evaluate(env="fates.py:Fated", policy="random", episodes=100, lanes=2, retries=0, seed=5,
                keep_errors=0, out="run", readers=[Kill()])
"""
TASK = ("a", "t")


@pytest.fixture
def fates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("fates.py").write_text(ENV)
    return tmp_path


def evaluate(folder: Path, **more: Any) -> hocket.Report:
    settings = {"episodes": 30, "lanes": 2, "retries": 0, **more}
    return hocket.evaluate(env="fates.py:Fated", policy="random", out=folder, **settings)


def films(folder: Path) -> dict[Outcome, list[int]]:
    """The seeds of episodes that have a film, by outcome."""
    found: dict[Outcome, list[int]] = {}
    with LedgerView.open(folder) as ledger:
        for episode in ledger.episodes():
            place = ledger.folder.attempt(episode.trial, episode.attempt)
            if any(place.glob("*.mp4")):
                found.setdefault(episode.outcome, []).append(episode.trial.seed)
                assert len(load_answers(place)["asked"])
    return found


def counted(folder: Path) -> dict[str, int]:
    with LedgerView.open(folder) as ledger:
        return dict(ledger.meta()[FILMS])


def test_three_failures_a_success_and_a_crash_of_each_kind_are_kept_of_all_that_ended(
    fates: Path,
) -> None:
    evaluate(fates / "run", keep_errors=20)
    kept = films(fates / "run")
    assert len(kept[Outcome.FAILURE]) == 3
    assert len(kept[Outcome.SUCCESS]) == 1
    with LedgerView.open(fates / "run") as ledger:
        lost = kept_evidence(ledger)
    filmed = [each for each in lost if any(file.endswith(".mp4") for file in each.files)]
    kinds = [crash_kind(each.error) for each in filmed]
    assert len(lost) == 6
    assert len(kinds) == len(set(kinds)) == 2
    assert any("Segmentation" in each.error for each in filmed), kinds
    assert counted(fates / "run") == {"filmed": 30, "ended": 30, "lacked": 0}
    page = (fates / "run" / FILE_NAME).read_text()
    assert "30 of 30 episodes were filmed while they ran" in page
    assert "not filmed yet" not in page


def test_of_how_many_episodes_films_were_chosen_is_true_of_a_run_that_was_killed(
    fates: Path,
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert done.returncode == -signal.SIGKILL
    with LedgerView.open(fates / "run") as ledger:
        ended = len(ledger.episodes())
    assert counted(fates / "run") == {"filmed": ended, "ended": ended, "lacked": 0}
    report = resume(fates / "run")
    assert len(report.episodes) == 100
    assert counted(fates / "run") == {"filmed": 100, "ended": 100, "lacked": 0}


def test_films_of_crashes_and_of_episodes_share_what_a_run_may_have(fates: Path) -> None:
    evaluate(fates / "all", video_mb=1.0)
    sizes = [path.stat().st_size for path in (fates / "all").rglob("*.mp4")]
    assert len(sizes) == 6
    room = sorted(sizes)[-1] * 2.5
    evaluate(fates / "some", video_mb=room / 1e6)
    assert 1 <= sum(path.stat().st_size for path in (fates / "some").rglob("*.mp4")) <= room
    lacked = counted(fates / "some")["lacked"]
    assert lacked >= 3
    page = (fates / "some" / FILE_NAME).read_text()
    assert re.search(rf"{lacked} films did not fit into --video-mb", page)


@pytest.mark.parametrize("drawing", [0.5, 3.0, 40.0])
def test_pictures_that_are_drawn_for_films_take_a_twentieth_and_lots_choose_the_trials(
    tmp_path: Path, drawing: float
) -> None:
    """`drawing` is how many steps a picture costs."""
    planned = [Trial(*TASK, seed) for seed in range(2000)]
    plan = VideoPlan(VideoSelection.parse("few"), planned, images=False)
    bounds = np.ones(2)
    spec = EnvSpec(
        task=TaskInfo(name="t", control_rate=20.0),
        action=ActionSpec(
            size=2, kind="box", shape=(2,), dtype="float64", low=-bounds, high=bounds
        ),
        observations={},
        cameras=("front",),
        abilities=("deferred",),
    )
    plan(planned[0], 0)
    plan.on(SpecLearned(time=0.0, suite="a", spec=spec))
    rng = np.random.default_rng(int(drawing * 10))
    moved = drawn = 0.0
    filmed = []
    for trial in planned:
        asked = plan(trial, 0)
        is_filmed = asked["video"] != "later" and asked["drawn"]
        steps = int(rng.integers(20, 60))
        cost = drawing * steps if is_filmed else 0.0
        moved, drawn = moved + steps, drawn + cost
        if is_filmed:
            filmed.append(trial)
        chunk: Any = ChunksExecuted(
            0.0, [0], [trial], [0], [0], [steps], [], [], [], [steps + cost], [cost], []
        )
        plan.on(chunk)
        plan.unwanted(Episode(trial, 0, Outcome.FAILURE, steps, 0.0))
    assert len(filmed) >= 1
    assert drawn <= max(0.05 * (moved + drawn) * 1.2, drawing * 120)
    if drawing < 40:
        assert drawn >= 0.05 * (moved + drawn) * 0.5
    # The first tells what films cost; after it lots choose, whatever came before.
    lots = [noise_seed(trial, -2) for trial in filmed[1:]]
    others = [noise_seed(trial, -2) for trial in planned[20:] if trial not in filmed]
    assert not lots or np.median(lots) < np.median(others) / 2
