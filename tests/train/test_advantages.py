from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.train.algorithms.grpo import group_advantages
from hocket.train.algorithms.ppo import smdp_advantages
from hocket.train.algorithms.stretches import LayoutError, Stretch, pad_stretches
from support.trajectories import LENGTH, stretch


def brute_force(part: Stretch, bootstrap: float, gamma: float, lam: float) -> list[float]:
    """Step by step in float64: each advantage as a sum of discounted errors, nothing recursive."""
    count = len(part)
    values = [float(v) for v in part.value] + [0.0 if part.terminated else bootstrap]
    errors = []
    for c in range(count):
        k = int(part.executed[c])
        reward = sum(gamma**i * float(part.rewards[c, i]) for i in range(k))
        errors.append(reward + gamma**k * values[c + 1] - values[c])
    found = []
    for c in range(count):
        total, steps = 0.0, 0
        for later in range(c, count):
            total += (gamma * lam) ** steps * errors[later]
            steps += int(part.executed[later])
        found.append(total)
    return found


@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    ends=st.lists(st.sampled_from(["terminated", "truncated", "cut"]), min_size=5, max_size=5),
    gamma=st.floats(0.5, 1.0),
    lam=st.floats(0.0, 1.0),
)
def test_smdp_advantages_equal_a_brute_force_sum_on_ragged_episodes(
    seed: int, lengths: list[int], ends: list[str], gamma: float, lam: float
) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        stretch(rng, chunks=n, seed=i, terminated=end == "terminated", truncated=end == "truncated")
        for i, (n, end) in enumerate(zip(lengths, ends, strict=False))
    ]
    rows = pad_stretches(parts).rows
    bootstrap = torch.from_numpy(rng.normal(size=len(parts)))
    found = smdp_advantages(
        rewards=rows["rewards"],
        executed=rows["executed"],
        value=rows["value"],
        terminated=rows["terminated"],
        valid=rows["valid"],
        bootstrap=bootstrap,
        gamma=gamma,
        lam=lam,
    )
    for i, part in enumerate(parts):
        wanted = brute_force(part, float(bootstrap[i]), gamma, lam)
        scale = max(1.0, max(map(abs, wanted)))
        np.testing.assert_allclose(
            found.advantage[i, : len(part)].double() / scale, np.array(wanted) / scale, atol=1e-6
        )
        assert not found.advantage[i, len(part) :].any()
        np.testing.assert_allclose(
            found.returns[i, : len(part)], np.array(wanted) + part.value, atol=1e-5 * scale
        )


def _last_advantage(part: Stretch, bootstrap: float) -> float:
    rows = pad_stretches([part]).rows
    found = smdp_advantages(
        rewards=rows["rewards"],
        executed=rows["executed"],
        value=rows["value"],
        terminated=rows["terminated"],
        valid=rows["valid"],
        bootstrap=torch.tensor([bootstrap]),
        gamma=1.0,
        lam=1.0,
    )
    return float(found.advantage[0, -1])


def test_a_truncated_episode_goes_on_from_its_final_observation_and_a_terminated_one_does_not() -> (
    None
):
    rng = np.random.default_rng(0)
    quiet = {"rewards": np.zeros((1, LENGTH)), "value": np.zeros(1, np.float32)}
    cut = stretch(rng, chunks=1, terminated=False, truncated=True, **quiet)
    ended = stretch(rng, chunks=1, terminated=True, **quiet)
    assert _last_advantage(cut, 7.0) == pytest.approx(7.0)
    assert _last_advantage(ended, 7.0) == 0.0


def test_rewards_laid_out_by_chunk_first_are_refused() -> None:
    with pytest.raises(LayoutError, match="do not fit"):
        smdp_advantages(
            rewards=torch.zeros(5, 2, LENGTH),
            executed=torch.ones(2, 5, dtype=torch.int64),
            value=torch.zeros(2, 5),
            terminated=torch.zeros(2, 5, dtype=torch.bool),
            valid=torch.ones(2, 5, dtype=torch.bool),
            bootstrap=torch.zeros(2),
            gamma=1.0,
            lam=1.0,
        )


def test_members_of_a_group_are_measured_against_each_other() -> None:
    found = group_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    np.testing.assert_allclose(found, [1, 1, -1, -1], atol=1e-5)
    assert not group_advantages(torch.ones(4)).any()
