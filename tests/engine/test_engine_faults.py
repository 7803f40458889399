"""One fault costs one attempt: every fault here happens in a real worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core.data import Outcome
from hocket.core.events import AttemptFailed, WorkerChanged
from hocket.errors import ConfigError, EnvError, HocketError, SpecMismatchError
from support.heard import Heard
from support.processes import DEADLINE_S

EPISODES = 6


def run(env_config: dict[str, Any], **settings: Any) -> tuple[hocket.Report, list[AttemptFailed]]:
    heard = Heard()
    settings = {"env": "toy:count", "policy": "scripted", "lanes": 3, **settings}
    report = hocket.evaluate(episodes=EPISODES, env_config=env_config, readers=[heard], **settings)
    return report, heard.of(AttemptFailed)


def results(report: hocket.Report) -> list[tuple[str, str, int, float]]:
    return [(e.trial.id, e.outcome.value, e.steps, e.total_reward) for e in report.episodes]


@pytest.fixture(scope="module")
def untroubled() -> list[tuple[str, str, int, float]]:
    return results(run({})[0])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"raise_at": 7}, "ToyError"),
        ({"segfault_at": 7}, "SIGSEGV"),
        ({"kill_at": 7}, "SIGKILL"),
        ({"exit_at": 7}, "exit"),
        ({"hang_at": 7}, "WorkerHung"),
        ({"drop_key_at": 7}, "observation/state"),
        ({"reshape_at": 7}, "observation/state"),
    ],
)
def test_a_fault_of_an_env_costs_one_attempt_and_changes_no_result(
    tmp_path: Path,
    fault: dict[str, int],
    kind: str,
    untroubled: list[tuple[str, str, int, float]],
) -> None:
    once = {"fault_seed": 2, "once_file": str(tmp_path / "once")}
    # Only the env that hangs has to be waited for.
    step_timeout_s = 3.0 if kind == "WorkerHung" else DEADLINE_S
    report, failures = run({**fault, **once}, step_timeout_s=step_timeout_s)
    assert results(report) == untroubled
    assert len(failures) == 1
    assert failures[0].again
    assert failures[0].trial.seed == 2
    assert kind in failures[0].error
    assert [e.attempt for e in report.episodes] == [0, 0, 1, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.heavy
def test_workers_that_leak_are_replaced_and_change_no_result(
    untroubled: list[tuple[str, str, int, float]],
) -> None:
    heard = Heard()
    report = hocket.evaluate(
        env="toy:count",
        policy="scripted",
        episodes=EPISODES,
        lanes=1 + 1,
        env_config={"leak": 3 << 20},
        worker_memory=150 << 20,
        readers=[heard],
    )
    assert results(report) == untroubled
    assert {event.state for event in heard.of(WorkerChanged)} > {"up"}


def test_a_trial_that_always_fails_is_an_error_and_no_failure_of_the_policy() -> None:
    report, failures = run({"raise_at": 7, "fault_seed": 2}, retries=1)
    outcomes = [episode.outcome for episode in report.episodes]
    assert outcomes[2] is Outcome.ERROR
    assert outcomes.count(Outcome.ERROR) == 1
    assert [failure.again for failure in failures] == [True, False]
    assert report.overall.n == EPISODES - 1
    assert report.overall.errors == 1
    assert "ToyError" in (report.episodes[2].error or "")
    assert report.complete


def test_an_env_that_cannot_be_built_ends_the_run_with_its_own_words() -> None:
    with pytest.raises(EnvError, match="This toy cannot be built") as caught:
        run({"raise_in_init": True})
    assert "ToyError" in str(caught.value)
    assert str(caught.value).count("ToyError") == 1


def test_an_env_that_says_why_it_cannot_be_is_not_asked_again() -> None:
    heard = Heard()
    with pytest.raises(ConfigError) as caught:
        hocket.evaluate(
            env="support.refusing_env:Refusing",
            policy="scripted",
            lanes=2,
            episodes=2,
            readers=[heard],
        )
    assert str(caught.value) == "Task 'look' has no camera 'left'."
    assert heard.of(AttemptFailed) == []


def test_recycled_workers_change_no_result(
    untroubled: list[tuple[str, str, int, float]],
) -> None:
    report, failures = run({}, recycle_after=1)
    assert results(report) == untroubled
    assert failures == []


def test_a_policy_that_answers_one_trial_with_nan_fails_at_that_trial_alone() -> None:
    settings = {"nan_on_task": "toy:count/count/3"}
    report, failures = run({"judged": False}, policy_config=settings, retries=1, lanes=6)
    assert failures == []
    assert [e.trial.seed for e in report.episodes if e.diverged] == [3]
    assert [e.trial.seed for e in report.episodes if e.outcome is Outcome.FAILURE] == [3]


def test_a_policy_that_fails_for_one_trial_costs_that_trial_alone() -> None:
    settings = {"raise_on_task": "toy:count/count/3"}
    report, failures = run({}, policy_config=settings, retries=1, lanes=6)
    assert [e.trial.seed for e in report.episodes if e.outcome is Outcome.ERROR] == [3]
    assert {failure.trial.seed for failure in failures} == {3}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"wrong_shape": "A"}, "ChunkShapeError"),
        ({"wrong_shape": "T"}, "ChunkShapeError"),
        ({"wrong_shape": "B"}, "ChunkShapeError"),
        ({"wrong_dtype": "complex128"}, "ChunkValueError"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_an_error_of_every_trial(
    settings: dict[str, str], word: str
) -> None:
    report, _ = run({}, policy_config=settings, retries=0)
    assert report.overall.errors == EPISODES
    assert all(word in (episode.error or "") for episode in report.episodes)
    assert report.overall.rate is None


def test_a_policy_of_another_action_size_is_refused_before_anything_runs() -> None:
    with pytest.raises(SpecMismatchError, match="action"):
        run({"action_size": 3}, policy_config={"action_size": 7})


def test_a_policy_slow_on_its_first_call_costs_no_attempt() -> None:
    report, failures = run(
        {}, policy_config={"slow_first_call_s": 3.0}, step_timeout_s=2.0, lanes=2
    )
    assert failures == []
    assert report.complete


def test_zero_episodes_are_refused() -> None:
    with pytest.raises(HocketError, match="episodes"):
        hocket.evaluate(env="toy:count", policy="scripted", episodes=0)
