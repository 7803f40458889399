"""Each rule of check_policy catches a policy that breaks it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from hocket.core.data import Batch, Row
from hocket.core.specs import ActionSpec, ArraySpec, EnvSpec, PolicySpec, TaskInfo
from hocket.testing import ConformanceError, ScriptedPolicy, check_policy, policy_findings

INPUTS = {"observation/state": ArraySpec(shape=(3,), dtype="float32")}
EXAMPLE = {"observation/state": np.arange(12, dtype=np.float32).reshape(4, 3)}


class Sound:
    """Answers from state and noise seed, row by row."""

    spec = PolicySpec(chunk_length=2, action_size=2, inputs=INPUTS, batch_invariant=True)

    def infer(self, batch: Batch) -> Any:
        state = batch.arrays["observation/state"]
        values = np.zeros((batch.size, 2, 2))
        for index, row in enumerate(batch.rows):
            noise = np.random.default_rng(row.noise_seed).normal()
            values[index] = state[index].sum() + noise + self.more(row)
        if batch.pad:
            values[len(batch.rows) :] = values[len(batch.rows) - 1]
        return values

    def more(self, row: Row) -> float:
        return 0.0

    def close(self) -> None: ...


class NoSpec(Sound):
    spec: Any = None


class LongReplan(Sound):
    spec = dataclasses.replace(Sound.spec, replan=5)


class OneRow(Sound):
    def infer(self, batch: Batch) -> Any:
        return super().infer(batch)[:1]


class ComplexAnswer(Sound):
    def infer(self, batch: Batch) -> Any:
        return super().infer(batch).astype(complex)


class NanAnswer(Sound):
    def more(self, row: Row) -> float:
        return float("nan")


class Raising(Sound):
    def infer(self, batch: Batch) -> Any:
        raise KeyError("observation/wrist")


class Writing(Sound):
    def infer(self, batch: Batch) -> Any:
        answer = super().infer(batch)
        batch.arrays["observation/state"][:] = 0
        return answer


class Reusing(Sound):
    buffer = np.zeros((64, 2, 2))

    def infer(self, batch: Batch) -> Any:
        answer = super().infer(batch)
        self.buffer[: len(answer)] = answer
        return self.buffer[: len(answer)]


class Restless(Sound):
    def more(self, row: Row) -> float:
        return float(np.random.default_rng().normal())


class KeyedByAttempt(Sound):
    def more(self, row: Row) -> float:
        return row.attempt


class Sorting(Sound):
    def infer(self, batch: Batch) -> Any:
        return np.sort(super().infer(batch), axis=0)


class Averaging(Sound):
    """As a network does with batch statistics left on."""

    def infer(self, batch: Batch) -> Any:
        answer = super().infer(batch)
        return answer - answer.mean(axis=0)


class Rounding(Sound):
    """Claims to be exact; a bit of the last place depends on the batch."""

    def infer(self, batch: Batch) -> Any:
        return super().infer(batch) * (1 + 1e-12 * batch.size)


class HonestRounding(Rounding):
    spec = dataclasses.replace(Sound.spec, batch_invariant=False)


class CountsPadding(Sound):
    def infer(self, batch: Batch) -> Any:
        return super().infer(batch) + batch.pad


class OneThread(Sound):
    def __init__(self) -> None:
        self.home = threading.get_ident()

    def more(self, row: Row) -> float:
        return 0.0 if threading.get_ident() == self.home else 1.0


class FragileClose(Sound):
    is_open = True

    def close(self) -> None:
        if not self.is_open:
            raise RuntimeError("closed already")
        self.is_open = False


class OneAtATime(Sound):
    spec = dataclasses.replace(Sound.spec, max_batch=1)

    def infer(self, batch: Batch) -> Any:
        assert batch.size == 1
        return super().infer(batch)


class Unkeyed(Restless):
    spec = dataclasses.replace(Sound.spec, keyed_noise=False, batch_invariant=False)


class Remembering(Sound):
    """Counts the chunks of each session: sound, since a session is its own."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}

    def begin_session(self, row: Row) -> None:
        self.sessions[row.session] = 0

    def end_session(self, session: str) -> None:
        del self.sessions[session]

    def more(self, row: Row) -> float:
        self.sessions[row.session] += 1
        return self.sessions[row.session]


class Adapting(Sound):
    """Keeps to the bounds of the row's env, prepared when it was told of it."""

    def __init__(self) -> None:
        self.highest: dict[Any, float] = {}

    def bind(self, spec: EnvSpec) -> None:
        self.highest[spec] = float(spec.action.high.max())

    def more(self, row: Row) -> float:
        return self.highest[row.env]


class KeyedByTask(Adapting):
    def bind(self, spec: EnvSpec) -> None:
        self.highest[spec.task.name] = float(spec.action.high.max())

    def more(self, row: Row) -> float:
        return self.highest[row.trial.task]


@pytest.mark.parametrize(
    "make", [Sound, HonestRounding, OneAtATime, Unkeyed, Remembering]
)  # fmt: skip
@pytest.mark.parametrize("example", [None, EXAMPLE])
def test_sound_policies_pass(make: Any, example: Any) -> None:
    check_policy(make(), example, close=True)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (NoSpec, "spec is a sound PolicySpec."),
        (LongReplan, "spec is a sound PolicySpec."),
        (OneRow, "infer() answers every row"),
        (ComplexAnswer, "infer() answers every row"),
        (NanAnswer, "infer() answers every row"),
        (Raising, "infer() answers every row"),
        (Writing, "infer() leaves its batch as it was."),
        (Reusing, "An answer is the caller's"),
        (Restless, "The same batch gets the same answer."),
        (KeyedByAttempt, "Noise comes from the noise seed alone."),
        (Sorting, "Row i answers row i."),
        (Averaging, "A row's answer does not depend on the rest of its batch."),
        (Rounding, "A row's answer does not depend on the rest of its batch."),
        (CountsPadding, "Padded rows change nothing for the others."),
        (OneThread, "infer() may be called from other threads"),
        (FragileClose, "close() may be called twice."),
    ],
)
def test_a_broken_policy_is_told_which_rule_it_breaks(make: Any, rule: str) -> None:
    example = {key: array.copy() for key, array in EXAMPLE.items()}
    findings = policy_findings(make(), example, close=True)
    assert any(finding.rule.startswith(rule) for finding in findings), findings
    example = {key: array.copy() for key, array in EXAMPLE.items()}
    with pytest.raises(ConformanceError, match="breaks"):
        check_policy(make(), example, close=True)


def test_an_example_is_asked_for_where_none_can_be_drawn() -> None:
    with pytest.raises(ValueError, match="give an example"):
        check_policy(ScriptedPolicy("", ScriptedPolicy.Config(action_size=2)))
    with pytest.raises(ValueError, match="two different rows"):
        check_policy(Sound(), {"observation/state": np.zeros((1, 3))})


def env_spec(low: float = -2.0, high: float = 3.0, task: str = "push") -> EnvSpec:
    action = ActionSpec(
        size=2,
        kind="box",
        shape=(2,),
        dtype="<f4",
        low=np.full(2, low),
        high=np.full(2, high),
    )
    return EnvSpec(
        task=TaskInfo(name=task),
        action=action,
        observations=INPUTS,
        cameras=(),
        abilities=(),
    )


def test_the_scripted_policy_is_sound_and_adapts_to_the_env() -> None:
    check_policy(ScriptedPolicy(), env=env_spec(), close=True)


def test_a_policy_that_keeps_envs_by_the_name_of_their_task_is_found() -> None:
    check_policy(Adapting(), EXAMPLE, env=env_spec())
    findings = policy_findings(KeyedByTask(), EXAMPLE, env=env_spec())
    assert [finding.rule for finding in findings] == [
        "What bind() tells of an env changes nothing for another whose task has the same name."
    ]


def test_an_action_size_other_than_the_envs_is_found() -> None:
    policy = ScriptedPolicy("", ScriptedPolicy.Config(action_size=5))
    (finding,) = policy_findings(policy, env=env_spec())
    assert "the env takes 2 numbers" in finding.detail
