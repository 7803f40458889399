"""Chunks that LeRobot itself guides to continue what is executed while it thinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.adapters.policies.rtc import RtcConfig
from hocket.core.contracts.policy import DELAY, PREFIX_LENGTH
from hocket.core.data import Array, Batch, Row
from hocket.errors import ConfigError

_GUIDED = ("smolvla", "pi0", "pi05")
"""Policies that LeRobot samples by a flow, and so can guide."""


def can_be_guided(policy: Any) -> bool:
    """True where the installed LeRobot can do real-time chunking for this policy."""
    return policy.config.type in _GUIDED and hasattr(policy, "init_rtc_processor")


def guide(policy: Any, config: RtcConfig) -> None:
    """Switch on LeRobot's own guidance by committed actions, which takes J for the identity
    (`identity` in `hocket.adapters.policies.rtc`)."""
    from lerobot.policies.rtc.configuration_rtc import RTCConfig

    if config.guidance != "identity":
        raise ConfigError(
            "LeRobot's policies are guided by LeRobot, which knows --rtc.guidance identity alone."
        )
    if config.steps:
        raise ConfigError(
            "LeRobot's policies take their own number of denoising steps: leave --rtc.steps out, "
            "and set num_steps (or num_inference_steps) in the policy's config.json."
        )
    schedules = type(RTCConfig().prefix_attention_schedule)
    policy.config.rtc_config = RTCConfig(
        enabled=True,
        prefix_attention_schedule=schedules[config.schedule.upper()],
        max_guidance_weight=config.weight,
    )
    policy.init_rtc_processor()


def alike(batch: Batch, rows: list[Row]) -> Iterator[tuple[Array, Batch, int, int]]:
    """Rows of one delay and one length of prefix, by which LeRobot guides a whole batch: their
    indices, their batch, and both."""
    told = np.stack([batch.arrays[DELAY], batch.arrays[PREFIX_LENGTH]], 1)
    for delay, length in np.unique(told, axis=0).tolist():
        index = np.flatnonzero((told == (delay, length)).all(1))
        arrays = {key: np.asarray(value)[index] for key, value in batch.arrays.items()}
        yield index, Batch(arrays=arrays, rows=tuple(rows[i] for i in index)), delay, length
