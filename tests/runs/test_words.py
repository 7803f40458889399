"""What users are told who made a mistake: one sentence, then the frames of their own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces

import hocket
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import EnvError, HocketError, PolicyError, UsageError
from hocket.runs.probe import check_specs

HERE = str(Path(__file__))
OURS = str(Path(hocket.__file__).parent)


class Dot(Env[Any, Any]):
    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float64)
    max_steps = 6

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2), 0.0, False, False, {"success": False}


class Breaks(Dot):
    def step(self, action: Any) -> Any:
        raise RuntimeError("the arm is stuck")


class Leaves(Dot):
    def step(self, action: Any) -> Any:
        raise SystemExit(3)


class Still:
    spec = hocket.PolicySpec(chunk_length=3, action_size=2)

    def infer(self, batch: hocket.Batch) -> Any:
        return np.zeros((batch.size, 3, 2))

    def close(self) -> None: ...


class Misreads(Still):
    def infer(self, batch: hocket.Batch) -> Any:
        return batch.arrays["state"]


class Exits(Still):
    def infer(self, batch: hocket.Batch) -> Any:
        raise SystemExit("no GPU")


def words(env: Any = Dot, policy: Any = None, **settings: Any) -> str:
    """What is said of a run: the error that ended it, or that of its first episode."""
    given = {"lanes": 1, "episodes": 2, "retries": 0, "progress": False, **settings}
    try:
        report = hocket.evaluate(env=env, policy=policy or Still(), **given)
    except HocketError as error:
        return f"{type(error).__name__}: {error}"
    return str(report.episodes[0].error)


@pytest.mark.parametrize("env", [Breaks, Leaves])
def test_an_env_that_raises_while_lanes_are_counted_is_no_lost_worker(env: type[Any]) -> None:
    said = words(f"{HERE}:{env.__name__}", lanes="auto", episodes=9)
    assert said.startswith(f"EnvError: The env of task '{env.__name__}' raised ")
    assert HERE in said
    assert OURS not in said
    assert "worker" not in said.partition("\n")[0]


def test_a_missing_key_is_told_with_those_that_there_are_and_an_exit_without() -> None:
    sentence, _, frames = words(policy=Misreads()).partition("\n")
    assert sentence.endswith(
        "raised KeyError: 'state'. The keys of its batch are: observation/state."
    )
    assert HERE in frames
    assert OURS not in frames
    assert words(policy=Exits()).partition("\n")[0].endswith("raised SystemExit: no GPU")


def test_what_is_no_env_at_all_is_told_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="env is a int: give a name"):
        hocket.evaluate(env=3, policy=Still())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="env is an instance of Dot"):
        hocket.evaluate(env=Dot(), policy=Still())  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="is a class: give an object"):
        hocket.evaluate(env=Dot, policy=Still)  # type: ignore[arg-type]


def test_what_is_no_policy_is_told_with_what_would_be_one() -> None:
    torch = pytest.importorskip("torch")
    assert "torch:" in words(policy=torch.nn.Linear(2, 2))
    assert "hocket.PolicySpec" in words(policy=lambda batch: np.zeros((batch.size, 3, 2)))
    assert "hocket.PolicySpec" in words(policy=f"{HERE}:words_of")


def words_of(batch: hocket.Batch) -> Any:
    """A function that would answer a batch itself."""
    return np.zeros((batch.size, 3, 2))


def test_continuations_that_are_a_method_are_told_to_be_a_value() -> None:
    class Continues(Still):
        def continuations(self) -> tuple[str, ...]:
            return ("prefix",)

        def continue_by(self, method: str, config: Any) -> None: ...

    said = words(policy=Continues(), delay="1", method="prefix", replan=2)
    assert "is read as a value, such as ('prefix',): make it an attribute or a @property" in said


def test_a_checkpoint_that_is_not_there_is_told_before_an_interpreter_starts() -> None:
    said = words(policy="lerobot:/nowhere/checkpoint", policy_python="/nowhere/bin/python")
    assert "There is no policy folder '/nowhere/checkpoint'." in said


def test_keys_of_a_checkpoint_that_do_not_fit_are_told_with_the_flag_that_maps_them() -> None:
    spec = hocket.PolicySpec(
        chunk_length=3,
        inputs={"observation.images.top": hocket.ArraySpec(shape=(3,), dtype="float32")},
    )
    env = EnvSpec(
        task=TaskInfo(name="t"),
        action=ActionSpec(
            size=2, kind="box", shape=(2,), dtype="<f4", low=-np.ones(2), high=np.ones(2)
        ),
        observations={"observation/state": hocket.ArraySpec(shape=(3,), dtype="float32")},
        cameras=("observation/image",),
        abilities=(),
    )
    (said,) = check_specs(spec, env, "lerobot:folder")
    assert "It gives: observation/image, observation/state." in said
    assert "--policy.keys observation.images.top observation/image" in said
    (said,) = check_specs(spec, env, f"{HERE}:Still")
    assert "--policy.keys" not in said


def test_where_no_episode_can_begin_the_attempts_are_counted() -> None:
    class Unread(Still):
        spec = hocket.PolicySpec(
            chunk_length=3, inputs={"depth": hocket.ArraySpec(shape=(2,), dtype="float64")}
        )

    with pytest.raises(EnvError, match=r"No episode could begin, in 1 attempt\."):
        hocket.evaluate(env=Dot, policy=Unread(), lanes=1, episodes=2, retries=0)
