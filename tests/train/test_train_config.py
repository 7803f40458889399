from __future__ import annotations

import dataclasses
import inspect
import itertools

import pytest

from hocket.errors import ConfigError
from hocket.train.config import GRPOConfig, PPOConfig, TrainConfig, UpdateConfig
from train.test_training import settings


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'gama'. Did you mean 'gamma'"):
        TrainConfig.from_plain({"env": "toy:count", "policy": "actor", "gama": 0.9})


def test_every_setting_is_declared_once() -> None:
    owners = [owner for owner in TrainConfig.__mro__ if dataclasses.is_dataclass(owner)]
    for one, other in itertools.combinations(owners, 2):
        assert not set(inspect.get_annotations(one)) & set(inspect.get_annotations(other)) - {
            "noun"
        }


@pytest.mark.parametrize("owner", [UpdateConfig, PPOConfig, GRPOConfig, TrainConfig])
def test_every_setting_says_at_its_declaration_what_it_means(owner: type) -> None:
    lines = [line.strip() for line in inspect.getsource(owner).splitlines()]
    for name in inspect.get_annotations(owner).keys() - {"noun"}:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert lines[at + 1].startswith('"""'), name


def test_settings_that_cannot_be_are_refused() -> None:
    for change in (
        {"mode": "async", "max_staleness": 0},
        {"algo": "grpo", "batch": 20, "group": 8},
        {"gamma": 1.5},
        {"lanes": 0},
        {"env": ()},
    ):
        with pytest.raises(ConfigError):
            settings(**change)


def test_what_is_left_to_the_reward_gets_numbers_by_it() -> None:
    sparse = settings(batch=None).settled(500)
    assert (sparse.batch, sparse.lam) == (32, 0.99)
    dense = settings(batch=None, reward="success,0.1*env")
    assert [dense.settled(steps).batch for steps in (0, 16, 200, 5000)] == [32, 32, 10, 8]
    assert dense.settled(200).lam == 0.95
    groups = settings(batch=None, reward="env", algo="grpo", group=5)
    assert [groups.settled(steps).batch for steps in (16, 200, 5000)] == [30, 10, 5]
    said = settings(batch=3, lam=0.5, reward="env").settled(5000)
    assert (said.batch, said.lam) == (3, 0.5)


def test_a_step_learns_from_sixteen_chunks_or_from_sixty_four_actions() -> None:
    assert [PPOConfig().minibatch_of(length) for length in (1, 2, 4, 16)] == [64, 32, 16, 16]
    assert PPOConfig(minibatch=5).minibatch_of(1) == 5
