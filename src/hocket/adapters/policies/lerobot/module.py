"""A LeRobot policy as a torch module of chunks, so that it can be trained: with gradients, from the
env's observations to the env's actions, through the policy's own processors."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hocket.adapters.policies.lerobot.folder import keys_of, load, spec_of
from hocket.errors import ConfigError

if TYPE_CHECKING:
    from hocket.adapters.policies.lerobot import LeRobotConfig


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


class SmolVLAModule(LeRobotModule):
    """SmolVLA: its chunks flow from noise, guided by what its language model makes of images,
    prompt and state. The critic sees the mean of that."""

    critic_features = "encoded"

    def __init__(self, folder: Path, settings: LeRobotConfig) -> None:
        super().__init__(folder, settings)
        self.encoded = nn.Identity()
        self.denoising_steps = int(self.policy.config.num_steps)
        self.flow_size = int(self.policy.config.max_action_dim)
        self.real_size = int(self.policy.config.action_feature.shape[0])

    def times(self, drawn: Tensor) -> Tensor:
        """Beta(1.5, 1) in LeRobot's time, by the inverse of its distribution."""
        return 1.0 - (0.999 * torch.special.ndtr(drawn) ** (1 / 1.5) + 0.001)

    def encode(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """The mask of the tokens, and the language model's keys and values."""
        from lerobot.policies.smolvla.modeling_smolvla import make_att_2d_masks

        policy, model = self.policy, self.policy.model
        inputs = policy._prepare_batch(self.read(observation))
        images, seen = policy.prepare_images(inputs)
        tokens, counted, attended = model.embed_prefix(
            images,
            seen,
            inputs["observation.language.tokens"],
            inputs["observation.language.attention_mask"],
            state=policy.prepare_state(inputs),
        )
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
        weights = counted[..., None].to(made[0].dtype)
        self.encoded((made[0] * weights).sum(1) / weights.sum(1).clamp(min=1))
        return counted, cache

    def velocity(self, features: tuple[Tensor, Any], x_t: Tensor, t: Tensor) -> Tensor:
        """LeRobot's time runs from 1 to 0, and so does its velocity."""
        counted, cache = features
        found: Tensor = self.policy.model.denoise_step(
            prefix_pad_masks=counted, past_key_values=cache, x_t=x_t, timestep=1.0 - t
        )
        return -found

    def code(self, actions: Tensor) -> Tensor:
        """The end of a flow that means these actions: normalised and padded as in LeRobot's own
        training."""
        chunk = actions.to(torch.float32)
        for step in self._before.steps:
            if hasattr(step, "_normalize_action"):
                chunk = step._normalize_action(chunk, inverse=False)
        if self.policy.config.adapt_to_pi_aloha:
            chunk = self.policy._pi_aloha_encode_actions_inv(chunk.clone())
        padded: Tensor = self.policy.prepare_action({"action": chunk.to(actions.device)})
        return padded

    def decode(self, end: Tensor) -> Tensor:
        """Actions of the end of a flow, which is padded to a size of its own."""
        config = self.policy.config
        chunk = end[:, :, : config.action_feature.shape[0]]
        if config.adapt_to_pi_aloha:
            chunk = self.policy._pi_aloha_encode_actions(chunk)
        return self.actions(chunk)


_KINDS = {"act": ACTModule, "smolvla": SmolVLAModule}


def make_module(kind: str, folder: Path, settings: LeRobotConfig) -> LeRobotModule:
    """The policy of a folder whose config.json says that it is of this kind."""
    if kind not in _KINDS:
        raise ConfigError(
            f"LeRobot's policies of the kind {kind!r} cannot be trained here; {', '.join(_KINDS)} "
            f"can. Add --residual to train a correction of its actions."
        )
    return _KINDS[kind](folder, settings)
