"""The scripted policy: what it answers, and how it misbehaves when told to."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from hocket.core import plugins
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import ConfigError, PolicyError
from hocket.testing import ScriptedPolicy


def batch(*tasks: str, state: Any = None, pad: int = 0) -> Batch:
    rows = []
    for index, task in enumerate(tasks):
        trial = Trial(suite="toy", task=task, seed=index)
        seed = noise_seed(trial, 0)
        rows.append(Row(trial=trial, attempt=0, chunk=0, noise_seed=seed, prompt="", session=""))
    given = np.zeros((len(tasks) + pad, 3)) if state is None else state
    return Batch(arrays={"observation/state": given}, rows=tuple(rows), pad=pad)


def scripted(**settings: Any) -> ScriptedPolicy:
    built = plugins.build("policies", "scripted", {"chunk_length": 4, "action_size": 2, **settings})
    assert isinstance(built, ScriptedPolicy)
    return built


def test_one_bit_of_one_observation_moves_every_action_of_its_row_and_no_other() -> None:
    state = np.ones((2, 3))
    before = scripted().infer(batch("a", "b", state=state))
    state[1, 2] = np.nextafter(1.0, 2.0)
    after = scripted().infer(batch("a", "b", state=state))
    np.testing.assert_array_equal(before[0], after[0])
    assert (before[1] != after[1]).all()


def test_the_noise_seed_moves_every_action() -> None:
    answer = scripted().infer(batch("a", "a"))
    assert (answer[0] != answer[1]).all()


def test_images_do_not_matter_beside_a_state() -> None:
    asked = batch("a")
    image = np.zeros((1, 2, 2, 3), np.uint8)
    with_image = Batch(arrays={**asked.arrays, "observation/image": image}, rows=asked.rows)
    np.testing.assert_array_equal(scripted().infer(asked), scripted().infer(with_image))


def test_actions_keep_to_the_bounds_of_each_rows_own_env() -> None:
    rows = []
    asked = batch("a", "a")
    for row, low, high in zip(asked.rows, (5.0, -np.inf), (6.0, np.inf), strict=True):
        action = ActionSpec(
            size=2, kind="box", shape=(2,), dtype="<f4", low=np.full(2, low), high=np.full(2, high)
        )
        spec = EnvSpec(
            task=TaskInfo(name="a"), action=action, observations={}, cameras=(), abilities=()
        )
        rows.append(dataclasses.replace(row, env=spec))
    answer = scripted(action_size=None).infer(dataclasses.replace(asked, rows=rows))
    assert ((answer[0] >= 5) & (answer[0] <= 6)).all()
    assert ((answer[1] >= -1) & (answer[1] <= 1)).all()


def test_it_says_what_to_do_when_it_cannot_know_the_action_size() -> None:
    with pytest.raises(PolicyError, match="action_size"):
        scripted(action_size=None).infer(batch("a"))


def test_it_raises_for_the_task_it_was_told() -> None:
    policy = scripted(raise_on_task="b")
    policy.infer(batch("a", "a"))
    with pytest.raises(RuntimeError, match="toy/b/1"):
        policy.infer(batch("a", "b"))


def test_it_answers_nan_for_the_trial_it_was_told_and_no_other() -> None:
    answer = scripted(nan_on_task="toy/a/1").infer(batch("a", "a", "a"))
    assert [bool(np.isnan(row).any()) for row in answer] == [False, True, False]


@pytest.mark.parametrize(("axis", "shape"), [("B", (3, 4, 2)), ("T", (2, 5, 2)), ("A", (2, 4, 3))])
def test_it_answers_with_the_wrong_shape(axis: str, shape: tuple[int, ...]) -> None:
    assert np.shape(scripted(wrong_shape=axis).infer(batch("a", "b"))) == shape


def test_it_answers_in_the_wrong_dtype() -> None:
    assert scripted(wrong_dtype="complex128").infer(batch("a")).dtype == np.complex128


def test_it_takes_its_time_by_call_and_by_row() -> None:
    policy = scripted(latency_s=0.01, latency_per_row_s=0.01, slow_first_call_s=0.05)
    took = []
    for _ in range(2):
        began = time.perf_counter()
        policy.infer(batch("a", "b"))
        took.append(time.perf_counter() - began)
    assert took[0] >= 0.08
    assert took[1] >= 0.03
    assert policy.batch_sizes == [2, 2]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_length"):
        scripted(chunk_length=0)
    with pytest.raises(ConfigError, match="settings only"):
        plugins.build("policies", "scripted:fast")
