"""The networks of `actor` and `flow`, and the residual one, which corrects another policy."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hocket.core.specs import ArraySpec
from hocket.errors import ConfigError
from hocket.train.networks.contract import (
    BASE,
    TASK,
    Acted,
    Evaluated,
    Observations,
    Shapes,
    Tensors,
)
from hocket.train.networks.policies import ActorConfig, FlowConfig
from hocket.train.networks.sampling import FlowNetwork, GaussianNetwork

_METAWORLD_STATE, _METAWORLD_FEATURES = 39, 76
"""Numbers in MetaWorld's state, and in what `_metaworld` makes of it."""


def units_of(shapes: Shapes) -> tuple[Tensor, Tensor]:
    """The middle of each number of an action and half of its range, `[A]`, which actions are told
    in: so that torques of 400 and steps of 0.05 are learnt alike."""
    low, high = torch.tensor(shapes.bounds or [(-1.0, 1.0)] * shapes.action_size).unbind(1)
    return (low + high) / 2, (high - low) / 2


class ChunkActor(GaussianNetwork):
    """A chunk actor-critic from the state, or from state and images: one pair of actor and critic
    for each task; images go through one encoder."""

    Config: ClassVar = ActorConfig

    def __init__(self, shapes: Shapes, config: ActorConfig) -> None:
        super().__init__()
        self.chunk_length = config.chunk_length
        self.action_size = shapes.action_size
        self.noise_size = config.chunk_length * shapes.action_size
        self.states = tuple(
            key for key in sorted(shapes.observations) if key not in shapes.cameras and key != BASE
        )
        self.cameras = tuple(sorted(shapes.cameras)) if config.images else ()
        self.inputs = (*self.states, *self.cameras)
        self.normalise = config.normalise and bool(self.states)
        self._limit = config.limit
        self._features = config.features
        if not self.inputs:
            raise ConfigError("There is nothing to see: the env has only images; set images.")
        size = feature_size(config.features, [shapes.observations[key] for key in self.states])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.encoder = ImageEncoder([shapes.observations[key] for key in self.cameras])
            widths = [size + self.encoder.size, *config.hidden]
            self.actors = nn.ModuleList(
                mlp([*widths, self.noise_size], last=0.01) for _ in shapes.tasks
            )
            self.critics = nn.ModuleList(mlp([*widths, 1], last=1.0) for _ in shapes.tasks)
        self.log_std = nn.Parameter(
            torch.full((config.chunk_length, shapes.action_size), math.log(config.std)),
            requires_grad=config.train_std,
        )
        self.register_buffer("mean", torch.zeros(len(shapes.tasks), size))
        self.register_buffer("scale", torch.ones(len(shapes.tasks), size))
        middle, reach = units_of(shapes)
        self.register_buffer("_middle", middle, persistent=False)
        self.register_buffer("_reach", reach, persistent=False)

    def value(self, observation: Observations) -> Tensor:
        return self._values(self._see(observation), observation)

    def features(self, observation: Observations) -> Tensor:
        return features_of(self._features, [observation[key] for key in self.states])

    def _look(self, observation: Observations) -> tuple[Tensor, Tensor]:
        seen = self._see(observation)
        return self._means(seen, observation), self._values(seen, observation)

    def _see(self, observation: Observations) -> Tensor:
        parts = []
        if self.states:
            task = observation[TASK]
            seen = (self.features(observation) - self.mean[task]) / self.scale[task]
            parts.append(seen if self._limit is None else seen.clamp(-self._limit, self._limit))
        if self.cameras:
            parts.append(self.encoder([observation[key] for key in self.cameras]))
        return torch.cat(parts, -1)

    def _means(self, seen: Tensor, observation: Observations) -> Tensor:
        flat = by_task(self.actors, seen, observation[TASK])
        chunks = flat.view(-1, self.chunk_length, self.action_size)
        return self._middle + self._reach * chunks

    def _values(self, seen: Tensor, observation: Observations) -> Tensor:
        return by_task(self.critics, seen, observation[TASK]).squeeze(-1)

    def _log_std(self) -> Tensor:
        return self.log_std + self._reach.log()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualConfig(ActorConfig):
    """Settings of a correction; `std` is in units of the correction, before scaling."""

    scale: float = 0.2
    """How far an action may be moved, roughly."""


class ResidualActor(ChunkActor):
    """Corrects a policy that nobody can look into: a = base + scale * correction.

    The base may be served over the wire and give no log-probabilities; only the correction is
    trained, and it starts out near zero. The critic does not see the base's chunk, since at the end
    of an episode nobody asks for one.
    """

    Config: ClassVar = ResidualConfig

    def __init__(self, shapes: Shapes, config: ResidualConfig) -> None:
        super().__init__(shapes, config)
        self._scale = config.scale
        size = self.mean.shape[1] + self.encoder.size + self.noise_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.actors = nn.ModuleList(
                mlp([size, *config.hidden, self.noise_size], last=0.01) for _ in shapes.tasks
            )

    def _means(self, seen: Tensor, observation: Observations) -> Tensor:
        base = observation[BASE].float()
        both = torch.cat((seen, base.flatten(1)), -1)
        correction = by_task(self.actors, both, observation[TASK])
        return base + self._scale * correction.view(base.shape)

    def _log_std(self) -> Tensor:
        return self.log_std + math.log(self._scale)


FARTHEST = 2.0
"""How far noise may be chosen from 0: beyond it a flow has hardly been trained."""


class NoiseActor(ChunkActor):
    """Steers a flow policy that stays as it is: an action is a row of the noise that a chunk flows
    from, and all rows of a chunk are the same. At the start it is standard normal."""

    Config: ClassVar = ActorConfig
    is_factorised = False
    tells_executed = True
    chooses_noise = True

    def __init__(self, shapes: Shapes, config: ActorConfig) -> None:
        super().__init__(shapes, dataclasses.replace(config, chunk_length=1))
        self.chunk_length = config.chunk_length

    def act(self, observation: Observations, noise: Tensor, *, deterministic: bool) -> Acted:
        found = super().act(observation, noise[:, None], deterministic=deterministic)
        chunk = found.actions.expand(-1, self.chunk_length, -1)
        return Acted(actions=chunk, log_prob=self._whole(found.log_prob), value=found.value)

    def evaluate(self, observation: Observations, actions: Tensor, extras: Tensors) -> Evaluated:
        found = super().evaluate(observation, actions[:, :1], extras)
        return Evaluated(
            log_prob=self._whole(found.log_prob),
            entropy=found.entropy.expand(-1, self.chunk_length),
            value=found.value,
        )

    def _means(self, seen: Tensor, observation: Observations) -> Tensor:
        row = torch.tanh(by_task(self.actors, seen, observation[TASK]))
        return (self._middle + self._reach * row)[:, None]

    def _whole(self, first: Tensor) -> Tensor:
        """What was chosen is told by a chunk's first action, which is always executed."""
        return nn.functional.pad(first, (0, self.chunk_length - 1))


class FlowActor(FlowNetwork):
    """Flow matching from the state: a velocity field and a critic for each task."""

    Config: ClassVar = FlowConfig

    def __init__(self, shapes: Shapes, config: FlowConfig) -> None:
        super().__init__()
        self.chunk_length = config.chunk_length
        self.action_size = self.flow_size = self.real_size = shapes.action_size
        self.inputs = tuple(k for k in sorted(shapes.observations) if k not in shapes.cameras)
        if not self.inputs:
            raise ConfigError("Policy 'flow' sees states only, and the env has none.")
        self.denoising_steps = config.denoising_steps
        self._features = config.features
        chunk = config.chunk_length * shapes.action_size
        size = feature_size(config.features, [shapes.observations[key] for key in self.inputs])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.fields = nn.ModuleList(
                mlp([size + chunk + 1, *config.hidden, chunk], last=1.0) for _ in shapes.tasks
            )
            self.critics = nn.ModuleList(
                mlp([size, *config.hidden, 1], last=1.0) for _ in shapes.tasks
            )
        self.sample_by(config, config.std, config.denoising_steps, size)
        self.register_buffer("mean", torch.zeros(len(shapes.tasks), size))
        self.register_buffer("scale", torch.ones(len(shapes.tasks), size))

    def value(self, observation: Observations) -> Tensor:
        return self._look(observation)[1]

    def encode(self, observation: Observations) -> tuple[Tensor, Tensor]:
        """What the fields see of each row, and the row's task."""
        state = features_of(self._features, [observation[key] for key in self.inputs])
        task = observation[TASK]
        return (state - self.mean[task]) / self.scale[task], task

    def velocity(self, features: tuple[Tensor, Tensor], x_t: Tensor, t: Tensor) -> Tensor:
        seen, task = features
        joined = torch.cat((seen, x_t.flatten(1), t[:, None]), -1)
        return by_task(self.fields, joined, task).view(x_t.shape)

    def _look(self, observation: Observations) -> tuple[Any, Tensor, Tensor]:
        seen = self.encode(observation)
        return seen, by_task(self.critics, *seen).squeeze(-1), self._spread(seen[0])


class ImageEncoder(nn.Module):  # type: ignore[misc]
    """Turns images `[B, height, width, channels]` uint8 into one vector `[B, size]`, each camera
    through a tower of its own; without cameras `size` is 0."""

    def __init__(self, cameras: Sequence[ArraySpec]) -> None:
        super().__init__()
        self.towers = nn.ModuleList(_tower(spec.shape[-1]) for spec in cameras)
        self.size = 128 * len(cameras)

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        found = [
            tower(image.movedim(-1, 1).float() / 255.0 - 0.5)
            for tower, image in zip(self.towers, images, strict=True)
        ]
        return torch.cat(found, -1)


def _tower(channels: int) -> Any:
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((channels, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(fan_in, fan_out, 5, stride=3, padding=2), nn.ReLU()]
    # A fixed grid, so that images of any size give a vector of one size.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def mlp(sizes: Sequence[int], *, last: float) -> Any:
    """Layers with rectifiers between them; the last one's weights are scaled by `last`."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(linear.weight, gain=math.sqrt(2))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    with torch.no_grad():
        layers[-2].weight.mul_(last / math.sqrt(2))
    return nn.Sequential(*layers[:-1])


def by_task(networks: Any, seen: Tensor, task: Tensor) -> Tensor:
    """Send each row `seen` `[B, F]` through the network of its task `[B]`.

    When acting, networks work on the whole batch and rows are picked after: how many rows of a task
    are in a batch must not change the last bits of the others.
    """
    if len(networks) == 1:
        only: Tensor = networks[0](seen)
        return only
    is_learning = torch.is_grad_enabled()
    whole: Tensor | None = None
    for index, network in enumerate(networks):
        rows = (task == index).nonzero().squeeze(-1)
        if len(rows):
            part = network(seen[rows]) if is_learning else network(seen)[rows]
            if whole is None:
                whole = part.new_zeros((len(seen), part.shape[-1]))
            whole = whole.index_copy(0, rows, part)
    assert whole is not None  # a batch has rows
    return whole


def feature_size(kind: str, states: Sequence[ArraySpec]) -> int:
    """Numbers that `features_of` makes of such states."""
    sizes = [int(torch.Size(spec.shape).numel()) for spec in states]
    if kind == "metaworld":
        if sizes != [_METAWORLD_STATE]:
            raise ConfigError(
                f"The features 'metaworld' need one state of 39 numbers, not {sizes}."
            )
        return _METAWORLD_FEATURES
    return sum(sizes)


def features_of(kind: str, states: Sequence[Tensor]) -> Tensor:
    """Turn states `[B, ...]` into what the first layer sees: one `[B, F]` float32."""
    if kind == "metaworld":
        return _metaworld(states[0])
    flat = torch.cat([state.flatten(1).float() for state in states], -1)
    return flat.sign() * flat.abs().log1p()


def _metaworld(state: Tensor) -> Tensor:
    """Compute the same numbers as `reference.features`, which the bundled weights expect."""
    state = state.double()
    now, before, goal = state[:, :18], state[:, 18:36], state[:, 36:39]
    hand, first, second = now[:, 0:3], now[:, 4:7], now[:, 11:14]
    motion = (now[:, :7] - before[:, :7]) * 100.0
    gaps = torch.cat((first - hand, goal - hand, goal - first, second - hand), 1)
    flat = gaps.view(-1, 4, 3)[:, :, :2].square().sum(-1).sqrt()
    gaps = torch.cat((gaps, flat), 1)
    near, nearer = (gaps / 0.1).clamp(-1, 1), (gaps / 0.025).clamp(-1, 1)
    return torch.cat((now, goal, motion, gaps, near, nearer), 1).float()
