"""What actors make of the state before their first layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.core.data import ArraySpec
from hocket.errors import ConfigError

_METAWORLD_STATE, _METAWORLD_FEATURES = 39, 76


def feature_size(kind: str, states: Sequence[ArraySpec]) -> int:
    """Numbers that `features_of` gives."""
    sizes = [int(torch.Size(spec.shape).numel()) for spec in states]
    if kind == "metaworld":
        if sizes != [_METAWORLD_STATE]:
            raise ConfigError(
                f"The features 'metaworld' need one state of 39 numbers, not {sizes}."
            )
        return _METAWORLD_FEATURES
    return sum(sizes)


def features_of(kind: str, states: Sequence[Tensor]) -> Tensor:
    """States `[B, ...]` as one `[B, F]` float32."""
    if kind == "metaworld":
        return _metaworld(states[0])
    flat = torch.cat([state.flatten(1).float() for state in states], -1)
    return flat.sign() * flat.abs().log1p()


def _metaworld(state: Tensor) -> Tensor:
    """The same numbers as `reference.features`, whose weights expect them."""
    state = state.double()
    now, before, goal = state[:, :18], state[:, 18:36], state[:, 36:39]
    hand, first, second = now[:, 0:3], now[:, 4:7], now[:, 11:14]
    motion = (now[:, :7] - before[:, :7]) * 100.0
    gaps = torch.cat((first - hand, goal - hand, goal - first, second - hand), 1)
    flat = gaps.view(-1, 4, 3)[:, :, :2].square().sum(-1).sqrt()
    gaps = torch.cat((gaps, flat), 1)
    near, nearer = (gaps / 0.1).clamp(-1, 1), (gaps / 0.025).clamp(-1, 1)
    return torch.cat((now, goal, motion, gaps, near, nearer), 1).float()
