"""Small matrices beside the large ones (LoRA, by `peft`): the network stays as it is, and only
they, the critic and what else is new are trained, published and saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hocket.adapters.policies.lerobot.folder import mend_torchvision
from hocket.errors import ConfigError, MissingExtraError

_SEED = 0
_NEW = ("critic", "log_std")
"""How names of parameters begin that are trained beside the adapter: no weights had them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """What `--adapter lora:r=16,alpha=32` says."""

    r: int = 16
    """Rank of the small matrices."""
    alpha: int = 0
    """Their product is scaled by alpha / r; 0 means twice r."""

    @classmethod
    def of(cls, text: str) -> Lora:
        """Read the text of `--adapter`."""
        kind, _, rest = text.partition(":")
        pairs = [part.partition("=") for part in rest.split(",") if part]
        known = cls.__dataclass_fields__
        if kind != "lora" or any(name not in known or not v.isdigit() for name, _, v in pairs):
            raise ConfigError(f"--adapter is lora:r=16 or lora:r=16,alpha=32, not {text!r}.")
        made = cls(**{name: int(value) for name, _, value in pairs})
        if made.r < 1:
            raise ConfigError("The rank of --adapter must be at least 1.")
        return made


def add_adapter(network: Any, text: str) -> None:
    """Freeze a network but for its critic and what else is new, and add what `--adapter` says to
    its linear layers. What it answers stays the same."""
    settings = Lora.of(text)
    mend_torchvision()  # which peft imports by way of transformers
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as exc:
        raise MissingExtraError(
            "--adapter needs the package 'peft', which is not installed here. Run: pip install "
            "'hocket[peft]'"
        ) from exc
    new = (*_NEW, *getattr(network, "fresh", ()))
    targets = _linear_layers(network, new)
    if not targets:
        raise ConfigError(f"{type(network).__name__} has no linear layer for --adapter.")
    kept = [p for name, p in network.named_parameters() if p.requires_grad and name.startswith(new)]
    network.requires_grad_(requires_grad=False)
    config = LoraConfig(
        r=settings.r, lora_alpha=settings.alpha or 2 * settings.r, target_modules=targets
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        inject_adapter_in_model(config, network)
    for parameter in kept:  # peft freezes whatever is not its own
        parameter.requires_grad_(requires_grad=True)
    network.eval()


def _linear_layers(network: Any, new: tuple[str, ...]) -> list[str]:
    """The names of the layers that are trained and called: attention of torch's own reads the
    weights of its layers without calling them."""
    inside = {
        f"{name}.{child}"
        for name, module in network.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        for child, _ in module.named_modules()
        if child
    }
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad
        if name not in inside and not name.startswith(new)
    ]
