"""What keeps large networks small in memory: copies that share frozen parts, and activations that
are computed again instead of kept."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hocket.errors import ConfigError


def twin(network: Any, device: torch.device | str) -> Any:
    """Copy a network to a device, with trained parameters and buffers of its own. Frozen parameters
    are shared with the network wherever both are on one device."""
    memo: dict[int, Any] = {}
    for parameter in network.parameters():
        if not parameter.requires_grad:
            there = parameter.detach().to(device)
            is_same = there.data_ptr() == parameter.data_ptr()
            memo[id(parameter)] = parameter if is_same else nn.Parameter(there, requires_grad=False)
    return copy.deepcopy(network, memo).to(device).eval()


def checkpoint_activations(network: Any) -> None:
    """Make a network keep only what its blocks were given, and compute the rest again where
    gradients need it. Blocks are the members of module lists, such as a transformer's layers; a
    module that knows better has a method `checkpoint_activations`."""
    own = getattr(network, "checkpoint_activations", None)
    if callable(own):
        own()
        return
    blocks = [
        block
        for parent in network.modules()
        if isinstance(parent, nn.ModuleList) and len(parent) > 1
        for block in parent
    ]
    if not blocks:
        raise ConfigError(
            f"{type(network).__name__} has no list of blocks whose activations could be computed "
            f"again: leave out --checkpoint-activations, or give it a method of that name."
        )
    for block in blocks:
        # Another class, and not another method: a copy of the block must not call the original.
        kind: Any = type(block)
        block.__class__ = _computed_again(kind)


@functools.cache
def _computed_again(kind: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)
        # A transformer's blocks add to the keys and values that they are given, and must find them
        # as they were.
        caches = {name: _like(one) for name, one in kwargs.items() if hasattr(one, "layers")}
        runs = itertools.count()

        def plain(*args: Any, **given: Any) -> Any:
            if next(runs):
                given |= {name: _like(cache) for name, cache in caches.items()}
            return kind.forward(self, *args, **given)

        return checkpoint(plain, *args, use_reentrant=False, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward})


def _like(cache: Any) -> Any:
    """A cache with the same keys and values, to which others can be added."""
    made = copy.copy(cache)
    made.layers = [copy.copy(layer) for layer in cache.layers]
    return made
