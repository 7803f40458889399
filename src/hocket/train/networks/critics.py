"""An ensemble of critics of whole chunks, which learn off policy what a decision is worth."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from hocket.train.networks.actor import ImageEncoder, feature_size, features_of
from hocket.train.networks.contract import (
    BASE,
    TASK,
    Observations,
    Shapes,
    normaliser_of,
)

_WORDS = 512
"""Rows of the table that words of prompts are looked up in, by their letters' sum."""
_WIDTH = 32
"""Numbers that a prompt becomes."""
_LIMIT = 10.0
"""Features are cut at this many spreads from their mean."""


class ChunkCritics(nn.Module):  # type: ignore[misc]
    """E critics of what is seen and of a decision `[B, size]`, in numbers of about -1 to 1: each
    answers with `[B]`. Their layers are normed, so that what was never tried is not thought to be
    worth ever more."""

    def __init__(
        self, network: Any, shapes: Shapes, *, size: int, count: int, hidden: tuple[int, ...]
    ) -> None:
        """They see what the network reads, in its units where these are measured."""
        super().__init__()
        keys = [key for key in sorted(network.inputs) if key != BASE]
        self._states = [key for key in keys if key not in shapes.cameras]
        self._cameras = [key for key in keys if key in shapes.cameras]
        self._units = [normaliser_of(network)]  # in a list: it is no part of this module
        states = [shapes.observations[key] for key in self._states]
        features = feature_size("plain", states)
        if self._units[0] is not None:
            features = self._units[0].mean.shape[1]
        self.encoder = ImageEncoder([shapes.observations[key] for key in self._cameras])
        self.words = nn.EmbeddingBag(_WORDS, _WIDTH)
        self._tasks = len(shapes.tasks)
        widths = [features + self.encoder.size + _WIDTH + self._tasks + size, *hidden, 1]
        self.layers = nn.ModuleList(
            _Layer(count, fan_in, fan_out, is_last=index == len(hidden))
            for index, (fan_in, fan_out) in enumerate(itertools.pairwise(widths))
        )

    def forward(self, observation: Observations, decisions: Tensor) -> Tensor:
        """What each critic expects, `[E, B]`."""
        task = observation[TASK]
        parts = [nn.functional.one_hot(task, self._tasks).float(), self._read(observation)]
        units = self._units[0]
        if units is not None:
            seen = (units.features(observation) - units.mean[task]) / units.scale[task]
            parts.append(seen.clamp(-_LIMIT, _LIMIT))
        elif self._states:
            parts.append(features_of("plain", [observation[key] for key in self._states]))
        if self._cameras:
            parts.append(self.encoder([observation[key] for key in self._cameras]))
        rows = torch.cat((*parts, decisions), -1)
        found = rows.expand(len(self.layers[0].weight), *rows.shape)
        for layer in self.layers:
            found = layer(found)
        return found.squeeze(-1)

    def _read(self, observation: Observations) -> Tensor:
        texts = [
            torch.tensor([sum(word.encode()) % _WORDS for word in text.split()] or [0])
            for text in observation.texts
        ]
        starts = torch.tensor([0, *(len(text) for text in texts[:-1])]).cumsum(0)
        device = self.words.weight.device
        known = self.words(torch.cat(texts).to(device), starts.to(device))
        read: Tensor = known[observation["prompt"]]
        return read


class _Layer(nn.Module):  # type: ignore[misc]
    """The same layer of E critics: linear, normed and rectified, or linear alone if it is last."""

    def __init__(self, count: int, fan_in: int, fan_out: int, *, is_last: bool) -> None:
        super().__init__()
        reach = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter(torch.empty(count, fan_in, fan_out).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.zeros(count, 1, fan_out))
        self.norm = None if is_last else nn.LayerNorm(fan_out)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.baddbmm(self.bias, x, self.weight)
        return found if self.norm is None else torch.relu(self.norm(found))
