from __future__ import annotations

import dataclasses
import inspect
import itertools
from pathlib import Path

import pytest

from hocket.errors import ConfigError
from hocket.records.run_file import load_run
from hocket.train.config import GRPOConfig, PPOConfig, TrainConfig, UpdateConfig
from train.test_training import settings

OLD_RUN = """\
env: [toy:count]
policy: actor
algo: grpo
mode: async
steps: 500
minutes: null
stop_at: null
seed: 3
lanes: 1
batch: 16
replan: null
reward: env
max_steps: null
lr: 0.001
lr_end: null
epochs: 2
minibatches: 4
gamma: 0.9
lam: 0.95
clip: 0.1
clip_high: null
clip_value: null
value_weight: 0.5
value_only: 1
entropy: 0.0
target_kl: null
max_grad_norm: 1.0
ratio: action
std: null
residual: false
residual_scale: 0.2
group: 4
pin_version: true
kl_weight: 0.1
max_staleness: 2
correction: tis
truncate: 2.0
segment_chunks: 0
eval_every: 0
eval_episodes: 20
eval_seed: 0
checkpoint_every: 20000
tracker: none
weights: ''
device: cpu
collect_device: cpu
threads: 1
retries: 2
step_timeout_s: 60.0
env_python: null
policy_python: null
env_config: {}
policy_config: {chunk_length: 4, hidden: [32, 32]}
about: {versions: {hocket: 0.1.0}}
"""


def test_the_flat_file_of_an_old_run_loads_and_is_written_with_the_same_keys(
    tmp_path: Path,
) -> None:
    (tmp_path / "run.yaml").write_text(OLD_RUN)
    plain = load_run(tmp_path)
    config = TrainConfig.from_plain(plain)
    assert (config.gamma, config.group, config.ratio, config.target_kl) == (0.9, 4, "action", None)
    assert config.to_plain().items() >= plain.items()


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
