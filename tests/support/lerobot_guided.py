"""Checks of chunks that LeRobot guides to continue the last ones; run by `lerobot_checks.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import RTCAttentionSchedule
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.policies.rtc.modeling_rtc import RTCProcessor

from hocket.adapters.policies.lerobot.noise import KeyedNoise
from hocket.adapters.policies.rtc import RtcConfig, guided_flow, pull
from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH
from hocket.core.data import Batch
from hocket.errors import ConfigError
from support import lerobot_models as models
from support.lerobot_checks import loaded, make_row, saved


def guided_chunks_are_lerobots_own():
    """Rows of several delays in one batch, beside LeRobot asked for each alone with what it kept
    itself of the chunk before: its own numbers, which never left its normalized space."""
    folder, rng = saved("smolvla"), np.random.default_rng(0)
    policy, size = loaded(folder), models.SIZE
    assert policy.continuations == ("rtc",)
    assert loaded(saved("act")).continuations == ()
    arrays = {
        "observation/state": rng.normal(size=(4, models.STATES)).astype(np.float32),
        "observation/image": rng.integers(0, 256, (4, size, size, 3), np.uint8),
        "observation/wrist_image": rng.integers(0, 256, (4, size, size, 3), np.uint8),
    }
    rows = tuple(make_row(i) for i in range(4))
    before = policy.infer(Batch(arrays=arrays, rows=rows)).values
    policy.continue_by("rtc", {"schedule": "linear", "weight": 4.0})
    delays, lengths = np.array([1, 2, 0, 1]), np.array([4, 4, 0, 3])
    prefix = np.zeros_like(before)
    for i, length in enumerate(lengths):
        prefix[i, :length] = before[i, 6 - length :]
    told = {PREFIX: prefix, PREFIX_LENGTH: lengths, DELAY: delays}
    ours = policy.infer(Batch(arrays={**arrays, **told}, rows=rows)).values
    config = PreTrainedConfig.from_pretrained(str(folder))
    config.rtc_config = RTCConfig(
        enabled=True,
        prefix_attention_schedule=RTCAttentionSchedule.LINEAR,
        max_guidance_weight=4.0,
    )
    own = get_policy_class(config.type).from_pretrained(str(folder), config=config)
    pre, post = make_pre_post_processors(config, pretrained_path=str(folder))
    for i, one in enumerate(rows):
        seen = pre(_as_lerobot_sees({key: value[i] for key, value in arrays.items()}, one.prompt))
        with KeyedNoise([one.noise_seed], torch.device("cpu")):
            first = own.predict_action_chunk(dict(seen))
        length = int(lengths[i])
        left = first[:, 6 - length :] if length else None
        with KeyedNoise([one.noise_seed], torch.device("cpu")):
            guided = own.predict_action_chunk(
                dict(seen),
                inference_delay=int(delays[i]),
                prev_chunk_left_over=left,
                execution_horizon=length,
            )
        np.testing.assert_allclose(ours[i], post(guided)[0].numpy(), rtol=1e-3, atol=1e-4)
        assert np.allclose(ours[i], before[i], atol=1e-4) == (length == 0)
    again = policy.infer(Batch(arrays=arrays, rows=rows)).values
    np.testing.assert_allclose(
        again, before, rtol=1e-4, atol=1e-5
    )  # who sends no prefix, gets none
    refused = ""
    try:
        policy.continue_by("rtc", {"guidance": "vjp"})
    except ConfigError as exc:
        refused = str(exc)
    assert "identity" in refused


def relative_actions_are_told_from_the_new_state():
    """A preprocessor that takes the state from actions, as LeRobot's do where they are relative,
    sees what is left of the last chunk beside the observation that the next one answers."""
    policy, told = loaded(saved("smolvla")), []
    policy.continue_by("rtc", {})
    inner, own = policy._loaded.preprocess, policy._loaded.policy.predict_action_chunk

    def relative(seen):
        if "action" in seen:
            here = seen["observation.state"][:, None, : models.MOVES]
            seen = {**seen, "action": seen["action"] - here}
        return inner(seen)

    def predict(inputs, **guided):
        told.append(guided.get("prev_chunk_left_over"))
        return own(inputs, **guided)

    policy._loaded = replace(policy._loaded, preprocess=relative)
    policy._loaded.policy.predict_action_chunk = predict
    state = np.full((1, models.STATES), 0.5, np.float32)
    image = np.zeros((1, models.SIZE, models.SIZE, 3), np.uint8)
    arrays = {"observation/state": state, "observation/image": image}
    arrays["observation/wrist_image"] = image
    prefix = np.random.default_rng(1).normal(size=(1, 6, models.MOVES))
    committed = {PREFIX: prefix, PREFIX_LENGTH: np.array([4]), DELAY: np.array([1])}
    policy.infer(Batch(arrays={**arrays, **committed}, rows=(make_row(0),)))
    seen = _as_lerobot_sees({key: value[0] for key, value in arrays.items()}, "push the puck")
    moved = torch.from_numpy(prefix.astype(np.float32) - 0.5)
    expected = inner({**seen, "action": moved})["action"]
    np.testing.assert_allclose(told[0].numpy(), expected[:, :4].numpy(), rtol=1e-5)


def _as_lerobot_sees(seen, prompt):
    batch = {
        "task": [prompt],
        "observation.state": torch.from_numpy(seen["observation/state"])[None],
    }
    for name in ("image", "wrist_image"):
        image = torch.from_numpy(seen[f"observation/{name}"])[None].permute(0, 3, 1, 2)
        batch[f"observation.images.{name}"] = image.contiguous().float() / 255
    return batch


def guidance_by_identity_is_lerobots():
    """hocket's own guided flow, from noise at t = 0, beside LeRobot's processor, whose time falls
    from 1, on one made-up flow."""
    torch.manual_seed(0)
    size, steps, mix = 8, 5, torch.randn(3, 3).double()
    noise, prefix = torch.randn(2, size, 3).double(), torch.randn(2, size, 3).double()

    def flow(x, t):
        return torch.tanh(x @ mix) - 0.3 * x + t

    for schedule in ("exp", "linear", "ones", "zeros"):
        for delay, length in ((0, 4), (2, 6), (3, 3), (4, 8)):
            known = torch.full((2,), length)
            left = torch.where(torch.arange(size)[None, :, None] < length, prefix, 0.0)
            config = RtcConfig(schedule=schedule, weight=5.0)
            weights = pull(known, torch.full((2,), delay), size, schedule)
            ours = guided_flow(
                lambda x, t: flow(x, t[:, None, None]), noise, steps, left, weights, config
            )
            theirs = RTCProcessor(
                RTCConfig(
                    enabled=True,
                    prefix_attention_schedule=RTCAttentionSchedule[schedule.upper()],
                    max_guidance_weight=5.0,
                )
            )
            x = noise
            for step in range(steps):
                time = 1.0 - step / steps
                v = theirs.denoise_step(
                    x_t=x,
                    prev_chunk_left_over=left,
                    inference_delay=delay,
                    time=time,
                    original_denoise_step_partial=lambda x, t=time: -flow(x, 1.0 - t),
                    execution_horizon=length,
                )
                x = (x - v / steps).detach()
            torch.testing.assert_close(ours, x, rtol=1e-6, atol=1e-6)
