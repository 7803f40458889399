"""A LeRobot policy as a torch module of chunks, so that it can be trained: with gradients, from the
env's observations to the env's actions, through the policy's own processors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hocket.adapters.policies.lerobot.folder import keys_of, load, spec_of
from hocket.errors import ConfigError

if TYPE_CHECKING:
    from hocket.adapters.policies.lerobot import LeRobotConfig

_TIMES = {"alpha": 1.5, "beta": 1.0, "scale": 0.999, "offset": 0.001}
"""How the times that a flow learns at are drawn, where its configuration does not say."""


class LeRobotModule(nn.Module):  # type: ignore[misc]
    """Reading observations and giving actions, as all kinds do."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__()
        loaded = load(folder, settings, "cpu")
        self._keys = keys_of(loaded.config, settings.keys)
        spec = spec_of(loaded.config, self._keys, settings)
        self.policy: Any = loaded.policy
        self._before, self._after = loaded.preprocess, loaded.postprocess
        self.chunk_length = spec.chunk_length
        self.inputs = tuple(self._keys)
        self.cameras = spec.cameras or ()
        self.history = spec.history
        self.replan = spec.replan

    @property
    def device(self) -> torch.device:
        """Where the policy is."""
        found: torch.device = next(iter(self.policy.parameters())).device
        return found

    def read(self, observation: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the policy's model is given, normalised and with its tokens."""
        found: dict[str, Any] = {}
        for ours, theirs in self._keys.items():
            tensor = observation[ours]
            if theirs.startswith("observation.image"):
                tensor = tensor.permute(0, 3, 1, 2).to(torch.float32) / 255
            found[theirs] = tensor.to(torch.float32)
        found["task"] = list(getattr(observation, "prompts", [""] * len(tensor)))
        for step in self._before.steps:
            if hasattr(step, "tensor_device"):
                step.tensor_device = self.device
        inputs: dict[str, Any] = self._before(found)
        inputs.pop("action", None)  # empty: only LeRobot's own training has actions here
        return inputs

    def actions(self, chunk: Tensor) -> Tensor:
        """Actions as the env takes them, of a normalised chunk."""
        whole: Tensor = self._after(chunk)
        return whole.to(chunk.device)


class ACTModule(LeRobotModule):
    """ACT: a chunk straight from the observation. The critic sees the mean of what its encoder
    makes of the observation."""

    critic_features = "encoded"

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.encoded = nn.Identity()
        model = self.policy.model
        model.encoder.register_forward_hook(self._pass_on)
        # It guesses the style of a demonstration, and has no part in acting.
        for name, parameter in model.named_parameters():
            if name.startswith("vae_encoder"):
                parameter.requires_grad_(requires_grad=False)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        inputs = self.read(observation)
        if self.policy.config.image_features:
            inputs["observation.images"] = [inputs[k] for k in self.policy.config.image_features]
        return self.actions(self.policy.model(inputs)[0])

    def _pass_on(self, _module: nn.Module, _given: Any, tokens: Tensor) -> None:
        self.encoded(tokens.mean(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefix:
    """What a language model made of an observation."""

    made: Tensor
    """The last layer's answer to each token, `[B, N, F]`."""
    counted: Tensor
    """Which tokens there are, `[B, N]`."""
    cache: Any
    """Keys and values of all layers."""
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    """What else each step of the flow is told."""


class FlowModule(LeRobotModule, ABC):
    """A policy whose chunks flow from noise, guided by what a language model makes of images,
    prompt and state. The critic sees the mean of that."""

    critic_features = "encoded"

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        config = self.policy.config
        self.encoded = nn.Identity()
        self.flow_size = int(config.max_action_dim)
        self.real_size = int(config.action_feature.shape[0])
        self._times = [float(getattr(config, f"time_sampling_{k}", v)) for k, v in _TIMES.items()]
        if self._times[1] != 1 or getattr(config, "use_relative_actions", False):
            raise ConfigError(
                f"{str(folder)!r} has actions relative to the state, or draws the times that it "
                f"learns at by another rule than Beta(a, 1): it cannot be trained here. Add "
                f"--residual to train a correction of its actions."
            )

    def times(self, drawn: Tensor) -> Tensor:
        """Beta(a, 1) in LeRobot's time, by the inverse of its distribution."""
        alpha, _, scale, offset = self._times
        return 1.0 - (scale * torch.special.ndtr(drawn) ** (1 / alpha) + offset)

    def encode(self, observation: Mapping[str, Tensor]) -> dict[str, Any]:
        """What each step of the flow is given beside a chunk and its time."""
        inputs = self._prepared(self.read(observation))
        found = self._prefix(
            inputs,
            inputs["observation.language.tokens"],
            inputs["observation.language.attention_mask"],
        )
        weights = found.counted[..., None].to(found.made.dtype)
        self.encoded((found.made * weights).sum(1) / weights.sum(1).clamp(min=1))
        told = {"prefix_pad_masks": found.counted, "past_key_values": found.cache}
        return {**told, **found.beside}

    @abstractmethod
    def _prefix(self, inputs: dict[str, Any], words: Tensor, counted: Tensor) -> Prefix:
        """Let the language model read images and the tokens of the prompt."""

    def _prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def velocity(self, features: dict[str, Any], x_t: Tensor, t: Tensor) -> Tensor:
        """LeRobot's time runs from 1 to 0, and so does its velocity."""
        found: Tensor = self.policy.model.denoise_step(x_t=x_t, timestep=1.0 - t, **features)
        return -found

    def code(self, actions: Tensor) -> Tensor:
        """The end of a flow that means these actions: normalised and padded as in LeRobot's own
        training."""
        chunk = actions.to(torch.float32)
        for step in self._before.steps:
            if hasattr(step, "_normalize_action"):
                chunk = step._normalize_action(chunk, inverse=False)
        padded: Tensor = self.policy.prepare_action({"action": chunk.to(actions.device)})
        return padded

    def decode(self, end: Tensor) -> Tensor:
        """Actions of the end of a flow, which is padded to a size of its own."""
        return self.actions(end[:, :, : self.real_size])


class SmolVLAModule(FlowModule):
    """SmolVLA. Its language model reads the state too."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.denoising_steps = int(self.policy.config.num_steps)

    def _prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        prepared: dict[str, Any] = self.policy._prepare_batch(inputs)
        return prepared

    def _prefix(self, inputs: dict[str, Any], words: Tensor, counted: Tensor) -> Prefix:
        from lerobot.policies.smolvla.modeling_smolvla import make_att_2d_masks

        policy, model = self.policy, self.policy.model
        images, seen = policy.prepare_images(inputs)
        state = policy.prepare_state(inputs)
        tokens, counted, attended = model.embed_prefix(images, seen, words, counted, state=state)
        forward = model.vlm_with_expert.forward
        # LeRobot 0.4 must be told to fill the cache; later ones do so where none is given.
        told = {"fill_kv_cache": True} if "fill_kv_cache" in signature(forward).parameters else {}
        made, cache = forward(
            attention_mask=make_att_2d_masks(counted, attended),
            position_ids=torch.cumsum(counted, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[tokens, None],
            use_cache=policy.config.use_cache,
            **told,
        )
        return Prefix(made=made[0], counted=counted, cache=cache)

    def code(self, actions: Tensor) -> Tensor:
        end = super().code(actions)
        if self.policy.config.adapt_to_pi_aloha:
            end = self.policy._pi_aloha_encode_actions_inv(end.clone())
        return end

    def decode(self, end: Tensor) -> Tensor:
        if self.policy.config.adapt_to_pi_aloha:
            end = self.policy._pi_aloha_encode_actions(end[:, :, : self.real_size].clone())
        return super().decode(end)


class PiModule(FlowModule):
    """pi0, whose flow is told the state in each of its steps, and pi0.5, whose prompt tells it."""

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.denoising_steps = int(self.policy.config.num_inference_steps)

    def _prefix(self, inputs: dict[str, Any], words: Tensor, counted: Tensor) -> Prefix:
        from lerobot.policies.common import vla_utils

        policy, model = self.policy, self.policy.model
        images, seen = policy._preprocess_images(inputs)
        tokens, counted, attended = model.embed_prefix(images, seen, words, counted)
        both = model.paligemma_with_expert
        both.paligemma.model.language_model.config._attn_implementation = "eager"
        mask = vla_utils.make_att_2d_masks(counted, attended)
        made, cache = both.forward(
            attention_mask=vla_utils.prepare_attention_masks_4d(mask),
            position_ids=torch.cumsum(counted, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[tokens, None],
            use_cache=True,
        )
        is_told = hasattr(policy, "prepare_state")
        beside = {"state": policy.prepare_state(inputs)} if is_told else {}
        return Prefix(made=made[0], counted=counted, cache=cache, beside=beside)


_KINDS = {"act": ACTModule, "smolvla": SmolVLAModule, "pi0": PiModule, "pi05": PiModule}


def make_module(kind: str, folder: Path, settings: LeRobotConfig) -> LeRobotModule:
    """The policy of a folder whose config.json says that it is of this kind."""
    if kind not in _KINDS:
        raise ConfigError(
            f"LeRobot's policies of the kind {kind!r} cannot be trained here; {', '.join(_KINDS)} "
            f"can. Add --residual to train a correction of its actions."
        )
    return _KINDS[kind](folder, settings)
