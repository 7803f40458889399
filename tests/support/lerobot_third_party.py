"""A policy as a package of somebody else's would have it; its check makes it one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import NormalizationMode
from lerobot.policies.act.processor_act import make_act_pre_post_processors
from lerobot.policies.pretrained import PreTrainedPolicy

make_steady_pre_post_processors = make_act_pre_post_processors


@PreTrainedConfig.register_subclass("steady")
@dataclass
class SteadyConfig(PreTrainedConfig):
    chunk_size: int = 6
    n_action_steps: int = 4
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: (
            dict.fromkeys(("STATE", "ACTION"), NormalizationMode.MEAN_STD)
            | {"VISUAL": NormalizationMode.IDENTITY}
        )
    )

    observation_delta_indices = reward_delta_indices = None
    action_delta_indices = ()

    def get_optimizer_preset(self):
        """Nothing is trained."""

    def get_scheduler_preset(self):
        """Nothing is trained."""

    def validate_features(self):
        """Any will do."""


class SteadyPolicy(PreTrainedPolicy):
    """Noise around what it sees. Its generator is its own, and its chunks are cut."""

    config_class, name = SteadyConfig, "steady"

    def __init__(self, config, **_):
        super().__init__(config)
        self.config = config
        states = config.input_features["observation.state"].shape[0]
        self.layer = torch.nn.Linear(states, config.output_features["action"].shape[0])
        self.reset()

    def reset(self):
        self._left = []

    def get_optim_params(self):
        return self.parameters()

    def forward(self, batch):
        raise NotImplementedError

    def predict_action_chunk(self, batch, **_):
        made = self.layer(batch["observation.state"])[:, None]
        generator = torch.Generator(made.device).manual_seed(42)
        shape = (len(made), self.config.n_action_steps, made.shape[-1])
        return made + torch.randn(shape, generator=generator, device=made.device)

    def select_action(self, batch, **_):
        if not self._left:
            self._left = list(self.predict_action_chunk(batch).transpose(0, 1))
        return self._left.pop(0)
