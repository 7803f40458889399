from __future__ import annotations

import numpy as np
import pytest

from hocket.adapters.policies.simple import RandomPolicy, ZeroPolicy
from hocket.core import plugins
from hocket.core.data import Batch, Row, Trial, noise_seed
from hocket.core.specs import ActionSpec, EnvSpec, TaskInfo
from hocket.errors import ConfigError, PolicyError


def batch(count: int, env: EnvSpec | None = None, *, pad: int = 0, first: int = 0) -> Batch:
    trials = [Trial(suite="s", task="t", seed=first + i) for i in range(count)]
    rows = tuple(
        Row(
            trial=t,
            attempt=0,
            chunk=2,
            noise_seed=noise_seed(t, 2),
            prompt="",
            session="",
            env=env,
        )
        for t in trials
    )
    return Batch(arrays={}, rows=rows, pad=pad)


def env(low, high, kind="box") -> EnvSpec:
    low, high = np.array(low, float), np.array(high, float)
    dtype = "<f4" if kind == "box" else "<i8"
    action = ActionSpec(size=low.size, kind=kind, shape=low.shape, dtype=dtype, low=low, high=high)
    return EnvSpec(
        task=TaskInfo(name="t"), action=action, observations={}, cameras=(), abilities=()
    )


def test_zero_answers_zeros_of_the_envs_size():
    policy = ZeroPolicy("", ZeroPolicy.Config(chunk_length=3))
    values = policy.infer(batch(2, env([-1, -1], [1, 1]), pad=1)).values
    assert values.shape == (3, 3, 2)
    assert not values.any()


def test_random_stays_in_the_envs_bounds_and_fills_them():
    policy = RandomPolicy("", RandomPolicy.Config(chunk_length=50))
    values = policy.infer(batch(20, env([0, -np.inf], [2, np.inf]))).values
    assert values[..., 0].min() >= 0
    assert values[..., 0].max() > 1.9
    assert values[..., 1].min() < -0.9
    assert values[..., 1].max() <= 1


def test_random_draws_every_discrete_action():
    policy = RandomPolicy("", RandomPolicy.Config(chunk_length=50))
    asked = batch(4, env([1], [3], kind="discrete"))
    assert set(policy.infer(asked).values.ravel()) == {1, 2, 3}


def test_a_row_of_random_depends_on_its_noise_seed_alone():
    policy = RandomPolicy("", RandomPolicy.Config(action_size=4, low=-0.5, high=0.5))
    whole = policy.infer(batch(8)).values
    for i in range(8):
        alone = policy.infer(batch(1, first=i, pad=2)).values
        assert np.array_equal(alone[0], whole[i])
        assert np.array_equal(alone[2], whole[i])
    assert len({row.tobytes() for row in whole}) == 8
    assert np.abs(whole).max() <= 0.5


@pytest.mark.parametrize("kind", [ZeroPolicy, RandomPolicy])
def test_a_policy_that_does_not_know_the_env_says_so(kind):
    with pytest.raises(PolicyError, match="action-size"):
        kind("", kind.Config()).infer(batch(1))


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="above"):
        RandomPolicy.Config(low=1, high=0)
    with pytest.raises(ConfigError, match="finite"):
        RandomPolicy.Config(low=float("nan"))
    with pytest.raises(ConfigError, match="at least 1"):
        RandomPolicy.Config(chunk_length=0)
    with pytest.raises(ConfigError, match="nothing after"):
        ZeroPolicy("x", ZeroPolicy.Config())


def test_both_are_found_by_name():
    assert plugins.build("policies", "zero", {"action_size": 3}).spec.action_size == 3
    assert plugins.build("policies", "random").spec.batch_invariant
