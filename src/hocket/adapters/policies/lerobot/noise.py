"""Keys the randomness inside a torch policy by lane: the same whatever batch a row is in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Draw = Callable[..., Any]
Positional = tuple[Any, ...]
Named = dict[str, Any]


class _Keyed(torch.Generator):  # type: ignore[misc]
    """A generator that was seeded here, perhaps by a context inside of another."""


class KeyedNoise(TorchFunctionMode):  # type: ignore[misc]
    """A context in which torch draws noise row by row, each row from a generator with its own seed.
    Noise without a row for each lane comes from one seed, `shared`."""

    def __init__(self, seeds: Sequence[int], device: torch.device, *, shared: int = 0) -> None:
        super().__init__()
        self._device = device
        self._rows = [_Keyed(device).manual_seed(seed) for seed in seeds]
        self._shared = _Keyed(device).manual_seed(shared)
        self._draws: Mapping[Draw, Draw] = {
            torch.randn: self._sized,
            torch.rand: self._sized,
            torch.randint: self._integers,
            torch.randn_like: self._like,
            torch.rand_like: self._like,
            torch.normal: self._normal,
            torch.multinomial: self._by_rows,
            torch.bernoulli: self._by_rows,
            torch.Tensor.normal_: self._in_place,
            torch.Tensor.uniform_: self._in_place,
            torch.Tensor.exponential_: self._in_place,
        }

    def __torch_function__(
        self, func: Draw, types: Sequence[type], args: Positional = (), kwargs: Named | None = None
    ) -> Any:
        named = dict(kwargs or {})
        draw = self._draws.get(func)
        if draw is None or isinstance(named.get("generator"), _Keyed):
            return func(*args, **named)
        return draw(func, args, named)

    def _sized(self, func: Draw, args: Positional, named: Named) -> Any:
        size = named.pop("size", None)
        if size is None:
            size = args[0] if args and isinstance(args[0], (tuple, list, torch.Size)) else args
        return self._draw(func, tuple(size), named)

    def _integers(self, func: Draw, args: Positional, named: Named) -> Any:
        sized = [part for part in args if isinstance(part, (tuple, list, torch.Size))]
        bounds = [part for part in args if not isinstance(part, (tuple, list, torch.Size))]
        low, high = named.pop("low", None), named.pop("high", None)
        bounds = [*bounds, *(bound for bound in (low, high) if bound is not None)]
        size = named.pop("size", None) or sized[0]
        return self._draw(functools.partial(func, *bounds), tuple(size), named)

    def _draw(self, func: Draw, size: tuple[int, ...], named: Named) -> Any:
        named = {"device": self._device, **named}
        # One of the policy's own would be for the whole batch.
        own = named.pop("generator", None)
        if not size or size[0] != len(self._rows):
            return func(size, generator=own or self._shared, **named)
        rows = [func((1, *size[1:]), generator=row, **named) for row in self._rows]
        return torch.cat(rows)

    def _like(self, func: Draw, args: Positional, named: Named) -> Any:
        sized = torch.randn if func is torch.randn_like else torch.rand
        like = args[0] if args else named.pop("input")
        named = {"dtype": like.dtype, "device": like.device, **named}
        named.pop("memory_format", None)
        return self._draw(sized, tuple(like.shape), named)

    def _normal(self, func: Draw, args: Positional, named: Named) -> Any:
        names = ("mean", "std", "size")
        values = {**dict(zip(names, args, strict=False)), **named}
        mean, std, size = values.pop("mean", 0.0), values.pop("std", 1.0), values.pop("size", None)
        if size is None:
            size = torch.broadcast_shapes(
                *(value.shape for value in (mean, std) if isinstance(value, torch.Tensor))
            )
        return mean + std * self._draw(torch.randn, tuple(size), values)

    def _by_rows(self, func: Draw, args: Positional, named: Named) -> Any:
        values, rest = args[0], args[1:]
        named.pop("generator", None)
        return torch.cat(
            [func(part, *rest, generator=g, **named) for part, g in self._parts(values)]
        )

    def _in_place(self, func: Draw, args: Positional, named: Named) -> Any:
        tensor, rest = args[0], args[1:]
        named.pop("generator", None)
        for part, generator in self._parts(tensor):
            func(part, *rest, generator=generator, **named)
        return tensor

    def _parts(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, torch.Generator]]:
        """Each lane's part of a tensor, whose first axis may have several rows for each."""
        count = len(self._rows)
        if tensor.ndim == 0 or not len(tensor) or len(tensor) % count:
            return [(tensor, self._shared)]
        return list(zip(tensor.split(len(tensor) // count), self._rows, strict=True))
