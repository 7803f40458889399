"""Guided chunks, against the equations in float64, written a second time without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from hocket.adapters.policies import rtc
from hocket.adapters.policies.rtc import Continuation, RtcConfig
from hocket.adapters.policies.torch import TorchPolicy
from hocket.core.contracts.policy import DELAY, PREFIX, PREFIX_LENGTH, Continues
from hocket.core.data import Array, Batch, Row, Trial
from hocket.errors import ConfigError

T, A, STEPS = 8, 2, 5
Guidance = Literal["identity", "vjp"]


class Field(nn.Module):  # type: ignore[misc]
    """A velocity that depends on the observation, on every number of the chunk, and on time."""

    denoising_steps = STEPS
    chunk_length, action_size = T, A

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.mix = nn.Parameter(0.3 * torch.randn(T * A, T * A, generator=draw))

    def forward(self, observation: Any) -> Any:
        raise AssertionError("Guided chunks are made of the flow alone.")

    def encode(self, observation: Any) -> Any:
        assert set(observation) == {"observation/state"}
        return observation["observation/state"]

    def velocity(self, features: Any, x_t: Any, t: Any) -> Any:
        flat = x_t.flatten(1) @ self.mix.to(x_t.dtype) + features[:, :1] + t[:, None]
        return torch.tanh(flat).view(x_t.shape)


def weights(length: int, delay: int, schedule: str) -> Array:
    """W of one row, as the paper has it."""
    found = np.zeros(T)
    for i in range(length):
        c = (length - i) / (length - min(delay, length) + 1)
        fall = {
            "exp": c * (np.exp(c) - 1) / (np.e - 1),
            "linear": c,
            "ones": 1.0,
            "zeros": 0.0,
        }[schedule]
        found[i] = 1.0 if i < delay else fall
    return found


def guided(
    mix: Array, state: float, noise: Array, prefix: Array, w: Array, guidance: str, beta: float
) -> Array:
    """One row: a plain loop over the steps, with the Jacobian of tanh by hand."""
    x, n = noise.reshape(-1).copy(), STEPS
    pull, goal = np.repeat(w, A), prefix.reshape(-1)
    for step in range(n):
        t = step / n
        v = np.tanh(x @ mix + state + t)
        error = pull * (goal - (x + (1 - t) * v))
        if guidance == "vjp":
            jacobian = np.eye(T * A) + (1 - t) * (mix * (1 - v**2)[None, :])
            error = jacobian @ error
        ratio = beta if step == 0 else min(beta, (1 - t) / t * (t**2 + (1 - t) ** 2) / (1 - t) ** 2)
        x = x + (v + ratio * error) / n
    return x.reshape(T, A)


@pytest.mark.parametrize("guidance", ["identity", "vjp"])
@pytest.mark.parametrize("schedule", ["exp", "linear", "ones", "zeros"])
def test_guided_chunks_are_those_of_the_equations(guidance: Guidance, schedule: str) -> None:
    draw = np.random.default_rng(1)
    noise, prefix = draw.standard_normal((2, 4, T, A))
    state = draw.standard_normal((4, 1))
    length, delay = np.array([0, 6, 5, 3]), np.array([0, 2, 5, 7])
    prefix *= (np.arange(T) < length[:, None])[:, :, None]
    module = Field().double()
    continuation = Continuation(
        module, "rtc", {"guidance": guidance, "schedule": schedule, "weight": 3.0}
    )
    observation = {
        "observation/state": torch.from_numpy(state),
        PREFIX: torch.from_numpy(prefix),
        PREFIX_LENGTH: torch.from_numpy(length),
        DELAY: torch.from_numpy(delay),
    }
    with torch.no_grad():
        found = continuation.sample(observation, torch.from_numpy(noise)).numpy()
    mix = module.mix.detach().numpy()
    for row in range(4):
        w = weights(int(length[row]), int(delay[row]), schedule)
        each = guided(mix, state[row, 0], noise[row], prefix[row], w, guidance, 3.0)
        assert np.allclose(found[row], each, rtol=1e-12, atol=1e-12)


def test_weights_are_the_published_ones() -> None:
    length, delay = torch.tensor([6]), torch.tensor([2])
    found = rtc.pull(length, delay, 8, "exp")[0].tolist()
    assert [round(weight, 3) for weight in found] == [1, 1, 0.571, 0.287, 0.114, 0.026, 0, 0]


class Prefixed(Field):
    """Takes a time for each action."""

    takes_prefix = True

    def velocity(self, features: Any, x_t: Any, t: Any) -> Any:
        assert t.shape == x_t.shape[:2]
        return x_t * 0 + t[:, :, None]


def test_prefixed_chunks_begin_with_what_is_committed() -> None:
    prefix = torch.arange(T * A, dtype=torch.float32).view(1, T, A)
    observation = {
        "observation/state": torch.zeros(1, 1),
        PREFIX: prefix,
        PREFIX_LENGTH: torch.tensor([6]),
        DELAY: torch.tensor([3]),
    }
    found = Continuation(Prefixed(), "prefix", {}).sample(observation, torch.zeros(1, T, A))
    assert torch.equal(found[:, :3], prefix[:, :3])
    # Others move by the mean of the times: (0 + 1/5 + ... + 4/5) / 5.
    assert torch.allclose(found[:, 3:], torch.tensor(0.4))
    assert rtc.continuations_of(Prefixed()) == ("rtc", "prefix")


@pytest.mark.parametrize("guidance", ["identity", "vjp"])
def test_torch_policy_continues_chunks_row_by_row(guidance: Guidance) -> None:
    policy = TorchPolicy(Field(), chunk_length=T, action_size=A)
    assert isinstance(policy, Continues)
    policy.continue_by("rtc", {"guidance": guidance})
    rows = [
        Row(trial=Trial("s", "t", i), attempt=0, chunk=1, noise_seed=i, prompt="", session=str(i))
        for i in range(3)
    ]
    draw = np.random.default_rng(2)
    arrays = {
        "observation/state": draw.standard_normal((3, 1)).astype(np.float32),
        PREFIX: draw.standard_normal((3, T, A)),
        PREFIX_LENGTH: np.array([8, 4, 8]),
        DELAY: np.array([2, 0, 8]),
    }
    whole = policy.infer(Batch(arrays=arrays, rows=rows)).values
    for row in range(3):
        alone = {key: array[row : row + 1] for key, array in arrays.items()}
        one = policy.infer(Batch(arrays=alone, rows=rows[row : row + 1])).values
        assert np.allclose(one[0], whole[row], atol=1e-5)
    # All eight actions of the last row are committed, and the guess is pulled all the way.
    assert np.abs(whole[2] - arrays[PREFIX][2]).max() < np.abs(arrays[PREFIX][2]).max() / 2


def test_flow_of_hockets_own_continues_and_without_a_pull_is_itself(tmp_path: Path) -> None:
    import hocket
    from support.trained_flow import save_flow

    folder = save_flow(tmp_path / "flow", denoising_steps=4, chunk_length=8, replan=4)
    common: dict[str, Any] = {"env": "support.point_env:make", "policy": str(folder), "lanes": 1}
    paused = hocket.evaluate(**common, episodes=3)
    same = hocket.evaluate(
        **common, episodes=3, method="rtc", delay=0, rtc_config={"schedule": "zeros"}
    )
    pulled = hocket.evaluate(**common, episodes=3, method="rtc", delay=2)
    assert [e.total_reward for e in same.episodes] == [e.total_reward for e in paused.episodes]
    assert [e.total_reward for e in pulled.episodes] != [e.total_reward for e in paused.episodes]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"rtc\.weight"):
        RtcConfig(weight=0.0)
