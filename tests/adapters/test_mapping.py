"""Embodiment mappings: rules, built-in ones, files, users' classes; and images against Pillow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hocket.adapters.policies.mapping import BUILTIN, check_env, open_mapping
from hocket.adapters.policies.mapping.rules import parse_mapping, resize, resize_with_pad
from hocket.core.specs import ActionSpec, ArraySpec, EnvSpec, TaskInfo
from hocket.errors import (
    ChunkShapeError,
    ConfigError,
    ObservationError,
    SpecMismatchError,
    UnknownNameError,
)


def image(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


DROID = {
    "observation/exterior_image_1_left": image(180, 320),
    "observation/wrist_image_left": image(224, 224),
    "observation/joint_position": np.arange(7.0),
    "observation/gripper_position": np.array([0.25]),
}


def pillow(source: np.ndarray, height: int, width: int) -> np.ndarray:
    image = Image.fromarray(source).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


@given(*(st.integers(1, 90),) * 4, st.integers(0, 9))
def test_resize_equals_pillow_s_two_passes_to_the_bit(
    old_height: int, old_width: int, height: int, width: int, seed: int
) -> None:
    source = image(old_height, old_width, seed)
    in_passes = pillow(pillow(source, old_height, width), height, width)
    ours = resize(source, height, width)
    assert np.array_equal(ours, in_passes)
    # New Pillows run the passes in either order: one more rounding, one level.
    assert np.abs(ours.astype(int) - pillow(source, height, width)).max() <= 1


@pytest.mark.parametrize("shape", [(720, 1280), (480, 640), (64, 48), (224, 224), (225, 223)])
def test_resize_with_pad_centres_what_pillow_would_make(shape: tuple[int, int]) -> None:
    source = image(*shape)
    ratio = max(shape[1] / 224, shape[0] / 224)
    height, width = int(shape[0] / ratio), int(shape[1] / ratio)
    expected = np.zeros((224, 224, 3), int)
    top, left = int((224 - height) / 2), int((224 - width) / 2)
    expected[top : top + height, left : left + width] = pillow(source, height, width)
    assert np.abs(resize_with_pad(source, 224, 224) - expected).max() <= 1


def test_resize_takes_a_stack_of_images_at_once() -> None:
    stack = np.stack([image(60, 80, seed) for seed in range(3)])
    assert np.array_equal(
        resize_with_pad(stack, 32, 32), np.stack([resize_with_pad(one, 32, 32) for one in stack])
    )


def test_droid_request_has_the_server_s_keys_and_sizes() -> None:
    request = open_mapping("droid").request(DROID, "pick it up")
    shapes = {key: value.shape for key, value in request.items() if key != "prompt"}
    assert shapes == {
        "observation/exterior_image_1_left": (224, 224, 3),
        "observation/wrist_image_left": (224, 224, 3),
        "observation/joint_position": (7,),
        "observation/gripper_position": (1,),
    }
    assert request["prompt"] == "pick it up"
    assert request["observation/exterior_image_1_left"].dtype == np.uint8


def test_droid_actions_are_cut_binarised_and_clipped() -> None:
    chunk = np.zeros((15, 32), np.float32)
    chunk[:, 0], chunk[:, 7] = 3.0, 0.51
    actions = open_mapping("droid").actions(chunk)
    assert actions.shape == (15, 8)
    assert actions[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    assert chunk[0, 0] == 3.0, "the reply itself is left alone"


def test_droid_jointpos_does_not_clip_angles() -> None:
    assert open_mapping("droid-jointpos").actions(np.full((2, 8), 2.5))[0, 0] == 2.5


def test_raw_libero_images_are_turned_upside_down() -> None:
    observation = {
        "observation/image": image(224, 224),
        "observation/wrist_image": image(128, 128),
        "observation/state": np.zeros(8),
    }
    turned = open_mapping("libero-raw").request(observation, "")["observation/image"]
    assert np.array_equal(turned, observation["observation/image"][::-1, ::-1])
    upright = open_mapping("libero").request(observation, "")["observation/image"]
    assert np.array_equal(upright, observation["observation/image"])


def test_aloha_images_are_nested_and_channels_first() -> None:
    observation = {"observation/image": image(480, 640), "observation/state": np.zeros(14)}
    request = open_mapping("aloha").request(observation, "")
    assert request["images"]["cam_high"].shape == (3, 224, 224)
    assert set(request) == {"images", "state", "prompt"}


def test_missing_key_is_named_with_the_nearest() -> None:
    observation = dict(DROID)
    observation["observation/wrist_image"] = observation.pop("observation/wrist_image_left")
    with pytest.raises(ObservationError, match=r"wrist_image_left.*Did you mean 'observation/wris"):
        open_mapping("droid").request(observation, "")


def test_state_of_another_size_is_named() -> None:
    with pytest.raises(ObservationError, match=r"joint_position.*6 numbers.*takes 7"):
        open_mapping("droid").request({**DROID, "observation/joint_position": np.zeros(6)}, "")


def test_vector_where_an_image_belongs_is_named() -> None:
    with pytest.raises(ObservationError, match=r"wrist_image_left.*\(4,\)"):
        open_mapping("droid").request({**DROID, "observation/wrist_image_left": np.zeros(4)}, "")


def test_server_of_another_embodiment_is_refused() -> None:
    with pytest.raises(ChunkShapeError, match=r"columns 0 to 8.*have 7"):
        open_mapping("droid").actions(np.zeros((10, 7)))


@pytest.mark.parametrize("name", list(BUILTIN))
def test_built_in_mapping_says_what_it_reads(name: str) -> None:
    mapping: Any = open_mapping(name)
    assert mapping.action_size is not None
    # Which images droid reads depends on whose keys the env has.
    assert (mapping.cameras is None) == name.startswith("droid")
    assert all("image" in key for key in mapping.cameras or ())


def test_droid_reads_isaac_lab_arena_s_keys_as_its_own() -> None:
    names = ("external_camera_rgb", "wrist_camera_rgb", "joint_pos", "gripper_pos")
    groups = ("camera_obs", "camera_obs", "policy", "policy")
    arena = {f"{g}/{n}": value for g, n, value in zip(groups, names, DROID.values(), strict=True)}
    run_by_hocket = {f"observation/{key}": value for key, value in arena.items()}
    mapping = open_mapping("droid-jointpos")
    expected = mapping.request(DROID, "")
    for seen in (arena, run_by_hocket):
        request = mapping.request(seen, "")
        assert request.keys() == expected.keys()
        for key in expected:
            np.testing.assert_array_equal(request[key], expected[key])
    check_env(mapping, "droid-jointpos", env_spec(tuple(run_by_hocket), 8))


def test_source_is_found_with_and_without_the_prefix_of_hocket_s_envs() -> None:
    rule = {"request": {"state": {"from": "robot.qpos"}, "image": {"from": "top", "rotate": 90}}}
    mapping = parse_mapping("mine", rule)
    assert mapping.cameras == ("observation/top",)
    arrays = {"robot/qpos": np.arange(3.0), "top": image(4, 4)}
    plain = mapping.request(arrays, "")
    prefixed = mapping.request({f"observation/{key}": a for key, a in arrays.items()}, "")
    np.testing.assert_array_equal(plain["state"], prefixed["state"])
    np.testing.assert_array_equal(plain["image"], prefixed["image"])
    with pytest.raises(ConfigError, match="as many keys as `from`"):
        parse_mapping("mine", {"request": {"x": {"from": ["a", "b"], "or": "c"}}})


def test_file_joins_states_maps_ranges_and_renames(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
        request:
          observation/state: {from: [eef, gripper], dtype: float32, size: 5}
          observation/image: {from: camera, range: [[0, 1], [-1, 1]], dtype: float32}
          observation/short: {from: eef, slice: [0, 2]}
        prompt: task
        actions:
          slice: [0, 3]
          gripper: {index: 2, range: [[0, 1], [1, -1]]}
        control_rate: 10
        replan: 4
        """
    )
    mapping: Any = open_mapping(str(file))
    observation = {
        "eef": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "gripper": np.array([5.0]),
        "camera": np.ones((4, 4, 3)),
    }
    request = mapping.request(observation, "go")
    assert request["observation/state"].tolist() == [1, 2, 3, 4, 5]
    assert request["observation/state"].dtype == np.float32
    assert request["observation/image"].max() == 1.0
    assert request["task"] == "go"
    assert mapping.actions(np.array([[9.0, 9.0, 1.0, 9.0]])).tolist() == [[9, 9, -1]]
    assert (mapping.control_rate, mapping.replan) == (10.0, 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"requests": {}}, "Did you mean 'request'"),
        ({"request": {}}, "at least one key"),
        ({"request": {"a": {"from": "b", "resise": [1, 2]}}}, "request.a.*Did you mean 'resize'"),
        ({"request": {"a": {"resize": [1, 2]}}}, "request.a: `from`"),
        ({"request": {"a": {"from": "b", "rotate": 45}}}, "rotate must be"),
        ({"request": {"a": {"from": "b", "resize": 224}}}, "two numbers"),
        ({"request": {"a": {"from": "b", "dtype": "floaty"}}}, "no dtype"),
        ({"request": {"a": {"from": "b", "layout": "whc"}}}, "layout must be"),
        ({"request": {"a": "b"}, "actions": {"clamp": [0, 1]}}, "Did you mean 'clip'"),
        ({"request": {"a": "b"}, "actions": {"gripper": {"indx": 1}}}, "Did you mean 'index'"),
    ],
)
def test_wrong_setting_of_a_mapping_is_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mapping("mine.yaml", data)


def test_unknown_mapping_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'libero'"):
        open_mapping("libaro")


def test_user_s_class_is_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robot.py").write_text(
        "class Robot:\n"
        "    def request(self, observation, prompt):\n"
        "        return {'x': observation['q'] * 2, 'prompt': prompt.upper()}\n"
        "    def actions(self, chunk):\n"
        "        return -chunk\n"
        "class Half:\n"
        "    def request(self, observation, prompt):\n"
        "        return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mapping = open_mapping("my_robot:Robot")
    assert mapping.request({"q": np.array([1])}, "go") == {"x": np.array([2]), "prompt": "GO"}
    with pytest.raises(ConfigError, match=r"has no actions\(\)"):
        open_mapping("my_robot:Half")
    sys.modules.pop("my_robot")


def env_spec(keys: tuple[str, ...], actions: int) -> EnvSpec:
    bound = np.ones(actions)
    return EnvSpec(
        task=TaskInfo(name="push"),
        action=ActionSpec(
            size=actions, kind="box", shape=(actions,), dtype="<f4", low=-bound, high=bound
        ),
        observations={key: ArraySpec(shape=(3,), dtype="<f4") for key in keys},
        cameras=(),
        abilities=(),
    )


def test_env_that_cannot_feed_a_mapping_is_refused_by_the_key() -> None:
    mapping = open_mapping("droid")
    check_env(mapping, "droid", env_spec(tuple(DROID), 8))
    with pytest.raises(SpecMismatchError, match="wrist_image_left"):
        check_env(mapping, "droid", env_spec(tuple(DROID)[:1], 8))
    with pytest.raises(SpecMismatchError, match=r"8 numbers a step.*takes 4"):
        check_env(mapping, "droid", env_spec(tuple(DROID), 4))


def test_bridge_actions_turn_as_simplerenv_turns_them() -> None:
    """The numbers are transforms3d's euler2axangle."""
    mapping = open_mapping("bridge")
    chunk = np.array([[0.01, 0.0, 0.0, 0.1, 0.2, 0.3, 0.9], [0.0] * 6 + [0.5]])
    actions = mapping.actions(chunk)
    np.testing.assert_allclose(actions[0, 3:6], [0.06892461, 0.21322593, 0.28874894], atol=1e-8)
    np.testing.assert_allclose(actions[:, [0, 6]], [[0.01, 1.0], [0.0, -1.0]])
    assert not actions[1, :6].any()


def test_bridge_is_sent_the_whole_picture_stretched_and_eight_numbers() -> None:
    picture = np.full((480, 640, 3), 7, np.uint8)
    seen = {"observation/image": picture, "observation/state": np.arange(8.0)}
    request = open_mapping("bridge").request(seen, "put carrot on plate")
    assert request["observation/primary_image"].shape == (224, 224, 3)
    assert (request["observation/primary_image"] == 7).all()
    assert request["prompt"] == "put carrot on plate"
