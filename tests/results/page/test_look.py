"""What is inside an episode: steps, chunks, answers and pictures, as the page is told of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.core.data import Trial
from hocket.records.ledger.view import LedgerView
from hocket.records.step_rows import load_steps
from hocket.results.page.faults import own_line
from hocket.results.page.look import looks_into
from support.recorded_runs import FAILURE, plan, record_run

CAMERAS = ("image", "wrist_image")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("look") / "run"
    hocket.evaluate(
        env="toy:image",
        policy="scripted",
        episodes=2,
        lanes=2,
        replan=4,
        out=folder,
        video="all",
        record="full",
        env_config={"image_size": 32},
    )
    return folder


def test_a_look_has_every_step_chunk_answer_and_what_was_observed(run: Path) -> None:
    with LedgerView.open(run) as ledger:
        made = [(episode.trial, episode.attempt) for episode in ledger.episodes()]
    looks = dict(looks_into(run, made))
    assert list(looks) == made
    for (trial, _), look in looks.items():
        rows = load_steps(run, [trial]).slice(1)
        assert look["chunk"] == rows["chunk"].to_pylist()
        assert look["age"] == rows["age"].to_pylist()
        shown = np.array(look["actions"]).T
        np.testing.assert_allclose(shown, rows["action"].to_pylist(), rtol=1e-3)
        assert sum(look["times"]["steps"]) == rows.num_rows
        assert look["layout"] == [("observation/state", 5)]
        assert look["prompt"] == "play image"
        assert look["ranges"] == [[-1.0] * 4, [1.0] * 4]
        assert set(look["answers"]["asked"]) <= set(look["states"]["at"])
        lengths = {len(chunk) for chunk in look["answers"]["actions"]}
        assert max(lengths) > 4, "what was answered beyond what was executed is there"


def test_what_the_policy_saw_is_kept_to_the_pixel_at_each_decision(run: Path) -> None:
    ((_, look),) = looks_into(run, [(Trial("toy:image", "image", 0), 0)])
    decisions = {step - age for step, age in enumerate(look["age"])}
    assert look["pictures"].keys() == set(CAMERAS)
    for some in look["pictures"].values():
        assert some.keys() == decisions
        assert all(one.startswith("data:image/png;base64,") for one in some.values())


def test_without_steps_there_are_the_chunks_and_without_either_nothing(tmp_path: Path) -> None:
    trials = plan(["push"], 2)
    record_run(tmp_path, trials, lambda _: FAILURE, ended=1)
    looks = dict(looks_into(tmp_path, [(trial, 0) for trial in trials]))
    assert list(looks) == [(trials[0], 0)]
    assert looks[trials[0], 0]["times"]["steps"] == [8, 8]
    assert "actions" not in looks[trials[0], 0]


TRACE = """The env raised KeyError: 'gripper'
  File "/home/me/hocket/src/hocket/workers/env/host.py", line 90, in step
    return self.env.step(action)
  File "/home/me/lab/my_envs.py", line 32, in step
    self.grip()
  File "/home/me/lab/my_envs.py", line 27, in grip
    return limits["gripper"]
           ~~~~~~^^^^^^^^^^^
  File "/home/me/venv/lib/python3.11/site-packages/numpy/core.py", line 3, in get
    raise KeyError(key)
"""


def test_the_users_own_line_of_an_error_is_told() -> None:
    assert own_line(TRACE) == 'my_envs.py, line 27, grip: return limits["gripper"]'
    assert own_line("WorkerCrashed: The worker (pid 7) exited with code 3.") is None
