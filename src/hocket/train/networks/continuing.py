"""A trained network whose chunks continue what is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hocket.adapters.policies.rtc import Continuation
from hocket.core.contracts.policy import PREFIX
from hocket.train.networks.contract import Acted, Observations


class ContinuingNetwork(nn.Module):  # type: ignore[misc]
    """Acts by the flow of another network, guided by what the observation says is committed."""

    def __init__(self, network: Any, method: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.chunk_length: int = network.chunk_length
        self.inputs: tuple[str, ...] = network.inputs
        self.noise_size: int = network.noise_size
        self._continuation = Continuation(network, method, settings)

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        """Sample from the first numbers of `noise`; without noise it starts from zeros, as the
        network itself does."""
        prefix = observation[PREFIX]
        start = noise[:, : prefix[0].numel()].view(prefix.shape)
        if deterministic:
            start = torch.zeros_like(start)
        actions = self._continuation.sample(observation, start)
        none = actions.new_zeros(actions.shape[:2])
        return Acted(actions=actions, log_prob=none, value=none[:, 0], extras={PREFIX: actions})
