from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import ActionSpaceError, ChunkShapeError, ChunkValueError, ObservationError
from hocket.workers.env.spaces import Drive, check_observation_space, flatten


def test_bare_vector_becomes_the_state() -> None:
    arrays, prompt = flatten(np.zeros(3, np.float32))
    assert list(arrays) == ["observation/state"]
    assert prompt is None


def test_bare_picture_becomes_the_image() -> None:
    arrays, _ = flatten(np.zeros((8, 9, 3), np.uint8))
    assert list(arrays) == ["observation/image"]


def test_discrete_observation_becomes_an_int64_scalar() -> None:
    arrays, _ = flatten(3)
    assert arrays["observation/state"].dtype == np.int64
    assert arrays["observation/state"].shape == ()


def test_nested_keys_are_joined_and_slashed_keys_kept() -> None:
    arrays, prompt = flatten(
        {
            "robot": {"arm": np.zeros(2), "grip": 1.0},
            "observation/image": np.zeros((4, 4, 3), np.uint8),
            "camera/left": np.zeros((4, 4, 3), np.uint8),
            "pair": (np.zeros(1), {"deep": np.ones(2)}),
            "prompt": "pick it up",
        }
    )
    assert sorted(arrays) == [
        "camera/left",
        "observation/image",
        "observation/pair/0",
        "observation/pair/1/deep",
        "observation/robot/arm",
        "observation/robot/grip",
    ]
    assert prompt == "pick it up"


def test_text_outside_of_the_prompt_is_refused_by_key() -> None:
    with pytest.raises(ObservationError, match="observation/label"):
        flatten({"label": "red"})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
    ],
)
def test_spaces_without_a_fixed_shape_are_refused_by_name(space: spaces.Space[Any]) -> None:
    with pytest.raises(ObservationError, match=type(space).__name__):
        check_observation_space(spaces.Dict({"fine": spaces.Discrete(2), "bad": space}))


def test_text_space_is_allowed_as_the_prompt() -> None:
    check_observation_space(spaces.Dict({"prompt": spaces.Text(5), "x": spaces.Discrete(2)}))


@given(st.integers(0, 2**32 - 1))
def test_any_sample_of_a_deep_space_keeps_every_number(seed: int) -> None:
    space = spaces.Dict(
        {
            "a": spaces.Box(-1, 1, (2, 3), np.float32),
            "b": spaces.Dict({"c": spaces.MultiBinary(4), "d": spaces.Discrete(9)}),
            "e": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(0, 9, (1,), np.int16)]),
        }
    )
    space.seed(seed)
    sample = space.sample()
    arrays, _ = flatten(sample)
    assert sum(array.size for array in arrays.values()) == 6 + 4 + 1 + 2 + 1
    assert np.array_equal(arrays["observation/a"], sample["a"])
    assert arrays["observation/b/d"] == sample["b"]["d"]
    assert np.array_equal(arrays["observation/e/1"], sample["e"][1])


@pytest.mark.parametrize(
    ("space", "size", "kind"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float32), 6, "box"),
        (spaces.Box(0, 255, (3,), np.uint8), 3, "box"),
        (spaces.Discrete(4, start=2), 1, "discrete"),
        (spaces.MultiDiscrete([3, 5]), 2, "discrete"),
        (spaces.MultiBinary(3), 3, "discrete"),
    ],
)
def test_decoded_actions_belong_to_the_action_space(
    space: spaces.Space[Any], size: int, kind: str
) -> None:
    drive = Drive(space)
    assert (drive.spec.size, drive.spec.kind) == (size, kind)
    rows = np.stack([drive.spec.low.ravel(), drive.spec.high.ravel()])
    actions = drive.decode(rows.astype("<f8").tobytes(), 2)
    for action in actions:
        assert space.contains(action)


def test_drive_refuses_spaces_it_cannot_drive_by_name() -> None:
    with pytest.raises(ActionSpaceError, match="Dict"):
        Drive(spaces.Dict({"arm": spaces.Discrete(2), "hand": spaces.Discrete(2)}))
    with pytest.raises(ActionSpaceError, match="Dict"):
        Drive(spaces.Dict({"arm": spaces.Text(2)}))


def test_a_dict_of_one_space_is_driven_as_that_space() -> None:
    inner = spaces.Box(-1, 1, (2,), np.float32)
    space = spaces.Dict({"arm": spaces.Dict({"joints": inner})})
    drive = Drive(space)
    assert drive.spec.size == 2
    (action,) = drive.decode(np.array([0.5, -0.5], "<f8").tobytes(), 1)
    assert space.contains(drive.dress(action))


def test_subclass_of_a_known_space_can_be_driven() -> None:
    class Arm(spaces.Box):
        pass

    assert Drive(Arm(-1, 1, (2,))).spec.size == 2


def test_wrong_number_of_action_values_is_refused() -> None:
    with pytest.raises(ChunkShapeError, match="needs 2"):
        Drive(spaces.Box(-1, 1, (2,))).decode(np.zeros(3, "<f8").tobytes(), 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_actions_that_are_not_finite_are_found(bad: float) -> None:
    for space in (spaces.Box(-1, 1, (2,)), spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)):
        numbers = np.zeros((3, 2))
        numbers[1, 1] = bad
        assert Drive(space).flaw(numbers.astype("<f8").tobytes()) == "not finite"


@pytest.mark.parametrize(
    ("value", "flaw"),
    [(1.0, ""), (-1.0, ""), (1 + 1e-7, ""), (1.02, ""), (1.03, "outside"), (-1e9, "outside")],
)
def test_actions_outside_of_a_bounded_box_are_found_beyond_one_percent_of_its_range(
    value: float, flaw: str
) -> None:
    drive = Drive(spaces.Box(-1, 1, (1,)))
    assert drive.flaw(np.array([0.0, value])) == flaw
    assert drive.strays(np.array([0.0, value])).tolist() == [False, bool(flaw)]


def test_a_box_that_is_bounded_on_one_side_has_bounds_there_alone() -> None:
    drive = Drive(spaces.Box(0, np.inf, (1,)))
    assert drive.flaw(np.array([1e300])) == ""
    assert drive.flaw(np.array([-0.005])) == ""
    assert drive.flaw(np.array([-0.5])) == "outside"


def test_discrete_actions_outside_of_the_space_are_refused() -> None:
    with pytest.raises(ChunkValueError, match=r"0\.0"):
        Drive(spaces.Discrete(3)).decode(np.array([3.0], "<f8").tobytes(), 1)


def test_whole_numbers_are_rounded_to() -> None:
    actions = Drive(spaces.Discrete(3)).decode(np.array([0.4, 1.6], "<f8").tobytes(), 2)
    assert actions.tolist() == [0, 2]


def test_gymnasium_envs_of_every_drivable_kind_can_be_driven() -> None:
    for name in ("CartPole-v1", "Pendulum-v1"):
        env = gymnasium.make(name)
        drive = Drive(env.action_space)
        env.reset(seed=0)
        env.step(drive.decode(drive.spec.low.astype("<f8").tobytes(), 1)[0])
        env.close()


@pytest.mark.parametrize(
    ("space", "is_fit"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), True),
        (spaces.Box(-1.0, 1.0, (1, 2), np.float64), True),
        (spaces.Box(-1.0, 1.0, (3,), np.float32), False),
        (spaces.Box(0, 9, (2,), np.int64), False),
        (spaces.MultiDiscrete([5, 5]), False),
    ],
)
def test_only_numbers_that_need_no_rounding_are_taken_as_they_are(space: Any, is_fit: bool) -> None:
    drive = Drive(space)
    assert drive.takes(np.full((4, 3, 2), 0.6)) == is_fit
