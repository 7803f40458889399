import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from hocket.core.data import Trial
from hocket.core.specs import ActionSpec, ArraySpec, EnvSpec, PolicySpec, TaskInfo
from hocket.runs.checks.check import CheckResult, action_warnings
from hocket.runs.probe import check_specs

ENV = EnvSpec(
    task=TaskInfo(name="reach", control_rate=80.0),
    action=ActionSpec(
        size=4,
        kind="box",
        shape=(4,),
        dtype="<f4",
        low=np.full(4, -1.0),
        high=np.full(4, 1.0),
    ),
    observations={
        "observation/state": ArraySpec(shape=(39,), dtype="<f8"),
        "observation/image": ArraySpec(shape=(224, 224, 3), dtype="|u1"),
    },
    cameras=("observation/image", "observation/wrist_image"),
    abilities=("deferred",),
)
POLICY = PolicySpec(
    chunk_length=16,
    action_size=4,
    inputs={
        "observation/state": ArraySpec(shape=(39,), dtype="float64"),
        "observation/image": ArraySpec(shape=(-1, -1, 3), dtype="uint8"),
    },
    cameras=("observation/image",),
    control_rate=80.0,
)


def test_a_policy_that_fits_has_no_problems() -> None:
    assert check_specs(POLICY, ENV) == []


def test_a_policy_that_asks_for_nothing_fits_everything() -> None:
    assert check_specs(PolicySpec(chunk_length=0), ENV) == []


def test_a_width_of_the_same_kind_and_the_prompt_are_no_mismatch() -> None:
    inputs = {
        "observation/state": ArraySpec(shape=(39,), dtype="float32"),
        "prompt": ArraySpec(shape=(), dtype="str"),
    }
    assert check_specs(replace(POLICY, inputs=inputs), ENV) == []


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            replace(POLICY, inputs={"observation/stat": ArraySpec(shape=(39,), dtype="<f8")}),
            "'observation/stat', which the env does not give. Did you mean 'observation/state'?",
        ),
        (
            replace(POLICY, inputs={"observation/state": ArraySpec(shape=(8,), dtype="<f8")}),
            "'observation/state' has the shape (39,); the policy wants (8,)",
        ),
        (
            replace(POLICY, inputs={"observation/state": ArraySpec(shape=(1, 39), dtype="<f8")}),
            "has the shape (39,); the policy wants (1, 39)",
        ),
        (
            replace(
                POLICY, inputs={"observation/image": ArraySpec(shape=(224, 224, 3), dtype="f4")}
            ),
            "'observation/image' is uint8; the policy wants float32",
        ),
        (
            replace(
                POLICY, inputs={"observation/wrist_image": ArraySpec(shape=(-1, -1, 3), dtype="u1")}
            ),
            "leaves it out of the cameras",
        ),
        (
            replace(POLICY, cameras=("observation/imagge",)),
            "camera 'observation/imagge', which the env does not have. Did you mean",
        ),
        (replace(POLICY, action_size=7), "7 numbers an action; the env is driven by 4"),
        (replace(POLICY, control_rate=10.0), "10 steps a second; the env runs at 80"),
    ],
)
def test_each_mismatch_is_named(policy: PolicySpec, says: str) -> None:
    (problem,) = check_specs(policy, ENV)
    assert says in problem


def test_actions_outside_their_bounds_and_constant_ones_are_warned_of() -> None:
    actions = np.zeros((10, 4))
    actions[:, 0] = np.linspace(-0.5, 0.5, 10)
    actions[:, 1] = np.linspace(0, 2, 10)
    outside, constant = action_warnings(actions, ENV)
    assert "Action 1: 50 % of the chunk lies outside [-1, 1]" in outside
    assert "action 2, 3" in constant


def test_a_single_action_is_not_called_constant() -> None:
    assert action_warnings(np.zeros((1, 4)), ENV) == []


def test_the_rendering_names_both_sides_ranges_and_problems() -> None:
    result = CheckResult(
        policy="mine:Policy",
        trial=Trial(suite="metaworld:mt10", task="reach", seed=0),
        policy_spec=POLICY,
        env_spec=ENV,
        inputs={"observation/state": np.linspace(-2, 3, 39)},
        prompt="reach the goal",
        actions=np.zeros((16, 4)),
        timing=None,
        problems=("The gripper is upside down.",),
        warnings=(),
    )
    console = Console(width=100, file=io.StringIO())
    console.print(result.render())
    text = console.file.getvalue()
    for part in ("224x224x3 uint8", "mine:Policy", "-2", "80 Hz", "gripper", "problem: The"):
        assert part in text
    assert "fit." not in text
