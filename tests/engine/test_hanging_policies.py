"""Policies that never return, in real runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_inference import job, values

import hocket
from hocket.core.data import Answer, Batch
from hocket.core.events import AttemptFailed
from hocket.core.specs import PolicySpec
from hocket.engine.inferring import inference as inference_module
from hocket.engine.inferring.deadline import FIRST_S, InferDeadline
from hocket.engine.inferring.inference import HUNG, LEAST_S, Inference, allowed_s
from hocket.engine.inferring.policy_thread import Answered
from hocket.engine.inferring.replicas import WarmedUp
from hocket.errors import ConfigError, PolicyHungError
from hocket.records.ledger.view import LedgerView
from hocket.runs.evaluation import resume
from support.hanging_policies import HANG_S, Hanging, Pair
from support.heard import Heard
from support.processes import DEADLINE_S

pytestmark = pytest.mark.heavy

TIMEOUT_S = 3.0


def run(policy: Any, **settings: Any) -> hocket.Report:
    common: dict[str, Any] = {
        "env": "toy:count",
        "episodes": 8,
        "lanes": 4,
        "retries": 0,
        "infer_timeout_s": TIMEOUT_S,
        "video": "none",
    }
    return hocket.evaluate(policy=policy, **{**common, **settings})


def outcomes(report: hocket.Report) -> list[tuple[str, int, float]]:
    return [(e.trial.id, e.steps, e.total_reward) for e in report.episodes]


def test_a_copy_that_hangs_is_left_and_its_attempts_spend_no_retry() -> None:
    policy, heard = Pair(), Heard()
    report = run(policy, policy_devices=("bad", "good"), readers=[heard])
    assert report.complete
    assert report.overall.errors == 0
    failures = heard.of(AttemptFailed)
    assert failures
    assert all(event.again and "'bad'" in event.error for event in failures)
    assert outcomes(report) == outcomes(run(Hanging(1 << 30)))


@pytest.mark.parametrize(
    "slow_s",
    [
        pytest.param(0.0, id="on the asking thread"),
        pytest.param(0.005, id="on its own", marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_only_policy_hangs_stops_in_words_and_goes_on_later(
    tmp_path: Path, slow_s: float
) -> None:
    folder = tmp_path / "run"
    policy = Hanging(12, slow_s)
    with pytest.raises(PolicyHungError, match="has not returned from infer") as hung:
        run(policy, out=folder)
    assert f"hocket resume {folder}" in str(hung.value)
    with LedgerView.open(folder) as ledger:
        ended = len(ledger.episodes())
    assert ended < 8
    assert (folder / "report.json").exists()
    report = resume(folder, policy=Hanging(1 << 30))
    assert report.complete
    assert outcomes(report) == outcomes(run(Hanging(1 << 30)))


@pytest.mark.slow
def test_a_hang_in_the_first_batch_leaves_a_folder_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(PolicyHungError):
        run(Hanging(0, 0.005), out=folder, episodes=2)
    assert resume(folder, policy=Hanging(1 << 30)).complete


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "hocket", *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.slow
def test_the_command_ends_with_words_though_a_thread_hangs_in_a_deadlock(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    common = ("--env", "toy:count", "--lanes", "2", "--episodes", "2", "--video", "none")
    done = command(
        "eval",
        *common,
        "--policy=support.hanging_policies:Hanging",
        "--policy.after=3",
        "--policy.slow-s=0.005",
        "--policy.lock",
        f"--infer-timeout={TIMEOUT_S}",
        f"--out={folder}",
    )
    assert done.returncode == 1, done.stderr
    assert "has not returned from infer" in done.stderr
    assert f"hocket resume {folder}" in done.stderr


@pytest.mark.slow
def test_a_sidecar_that_hangs_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_TEST_HUNG", str(tmp_path / "hung"))
    tests = str(Path(__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, *sys.path]))
    heard = Heard()
    report = run(
        "support.hanging_policies:HangsOnce",
        policy_python=sys.executable,
        policy_config={"after": 3},
        episodes=3,
        lanes=2,
        infer_timeout_s=5.0,
        readers=[heard],
    )
    assert (tmp_path / "hung").exists()
    assert report.complete
    assert [episode.error for episode in report.episodes if episode.error] == []
    failures = heard.of(AttemptFailed)
    assert any("has not returned" in event.error for event in failures)
    assert all(event.again for event in failures)


# -- one by one ----------------------------------------------------------------------------------


def test_the_time_allowed_follows_what_is_usual_and_what_first_calls_took() -> None:
    usual = InferDeadline()
    assert allowed_s(usual, 0.1, is_new=False, slowest_first_s=1.0) == LEAST_S
    assert allowed_s(usual, 60.0, is_new=False, slowest_first_s=1.0) == 6000.0
    assert allowed_s(usual, 0.1, is_new=True, slowest_first_s=None) == FIRST_S
    assert allowed_s(usual, 0.1, is_new=True, slowest_first_s=90.0) == 900.0
    asked = InferDeadline(seconds=5.0)
    assert allowed_s(asked, 60.0, is_new=False, slowest_first_s=90.0) == 5.0
    assert allowed_s(asked, 60.0, is_new=True, slowest_first_s=90.0) == 900.0
    assert allowed_s(asked, 60.0, is_new=True, slowest_first_s=0.1) == 5.0


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="infer_timeout_s"):
        run(Hanging(), infer_timeout_s=seconds)


class Gated:
    """Answers once its gate is open."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.spec = PolicySpec(chunk_length=3)
        self.asked, self.gate = threading.Event(), threading.Event()
        if is_open:
            self.gate.set()

    def infer(self, batch: Batch) -> Answer:
        self.asked.set()
        assert self.gate.wait(HANG_S)
        return np.repeat(batch.arrays["observation/state"][:, None, :2], 3, axis=1)

    def close(self) -> None: ...


def take(inference: Inference, count: int) -> list[Answered | WarmedUp]:
    found: list[Answered | WarmedUp] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += inference.answers()
        time.sleep(0.01)
    assert len(found) == count
    return found


def test_an_answer_that_comes_too_late_is_dropped() -> None:
    late, other = Gated(), Gated()
    deadline = InferDeadline(seconds=2.0)
    inference = Inference([late, other], ["late", "other"], deadline=deadline)
    inference.start(lambda: None)
    inference.warm_up(job(1), [1, 2])
    take(inference, 1)
    late.gate.clear()
    late.asked.clear()
    count = 0
    while not late.asked.wait(0.01):  # Whoever wakes first may answer several.
        count += 1
        inference.submit(job(2, count))
    answers = take(inference, count)
    late.gate.set()
    assert all(isinstance(answer, Answered) for answer in answers)
    lost = [a for a in answers if isinstance(a, Answered) and a.blameless]
    assert len(lost) == 1
    assert all(isinstance(error, PolicyHungError) for error in lost[0].errors)
    assert inference.concurrency == 1
    inference.submit(job(2, 99))
    (last,) = take(inference, 1)
    assert isinstance(last, Answered)
    assert last.job.number == 99
    assert values(last) == [0, 1]
    inference.close()


def test_a_warm_up_that_hangs_goes_on_with_the_other_copies() -> None:
    stuck, other = Gated(is_open=False), Gated()
    deadline = InferDeadline(seconds=2.0, first_s=2.0)
    inference = Inference([stuck, other], ["stuck", "other"], deadline=deadline)
    inference.start(lambda: None)
    inference.warm_up(job(1), [1, 2])
    (warm,) = take(inference, 1)
    assert isinstance(warm, WarmedUp)
    assert set(warm.latencies) == {1, 2}
    inference.submit(job(2))
    (answer,) = take(inference, 1)
    assert isinstance(answer, Answered)
    assert values(answer) == [0, 1]
    assert any(thread.name.startswith(HUNG) for thread in threading.enumerate())
    stuck.gate.set()
    inference.close()


def test_a_warm_up_that_hangs_everywhere_ends_the_run() -> None:
    stuck = Gated(is_open=False)
    inference = Inference([stuck], ["stuck"], deadline=InferDeadline(first_s=0.5))
    inference.start(lambda: None)
    inference.warm_up(job(1), [1])
    with pytest.raises(PolicyHungError, match="'stuck'"):
        take(inference, 1)
    assert inference.is_stuck
    stuck.gate.set()
    inference.close()


def test_calls_that_compile_are_not_taken_for_hanging() -> None:
    """The first call of each shape takes longer than others may."""

    class Compiles(Gated):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[int] = set()

        def infer(self, batch: Batch) -> Answer:
            if batch.size not in self.seen:
                self.seen.add(batch.size)
                time.sleep(1.6)
            return super().infer(batch)

    policy = Compiles()
    inference = Inference([policy], ["compiles"], deadline=InferDeadline(seconds=1.2))
    inference.start(lambda: None)
    inference.warm_up(job(1), [1])
    take(inference, 1)
    for number, size in enumerate((3, 5, 3, 5)):
        inference.submit(job(size, number))
    assert all(isinstance(a, Answered) and None not in a.chunks for a in take(inference, 4))
    inference.close()


def test_time_in_which_nobody_looked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-Z: the policy could not answer while the process was stopped."""
    monkeypatch.setattr(inference_module, "_NAP_S", 0.3)
    policy = Gated()
    inference = Inference([policy], ["stopped"], deadline=InferDeadline(seconds=1.0))
    inference.start(lambda: None)
    inference.warm_up(job(1), [2])
    take(inference, 1)
    policy.gate.clear()
    inference.submit(job(2))
    time.sleep(1.5)
    assert inference.answers() == []
    policy.gate.set()
    (answer,) = take(inference, 1)
    assert isinstance(answer, Answered)
    assert values(answer) == [0, 1]
    inference.close()
