"""Noise that a foreign server lets its clients choose, keyed by trial and chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hocket.core.data import Array
from hocket.errors import ConfigError, PolicyError

Wanted = Literal["auto", "none", "noise", "seed"]
ALIKE = 0.1
"""Answers to one seed may differ by this share of what another seed changes: a server may have
put them into batches of other sizes."""
CHECKED = (1, 1, 2)
"""What one observation is asked with before an answer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keying:
    """What of a request its noise follows from."""

    key: Literal["noise", "seed"]
    shape: tuple[int, ...] = ()
    """Of the noise."""

    def keyed(self, request: Mapping[str, Any], noise_seed: int) -> dict[str, Any]:
        """The request with its noise; or with 31 bits of the seed, which torch takes anywhere."""
        if self.key == "seed":
            return {**request, self.key: noise_seed & 0x7FFF_FFFF}
        random = np.random.Generator(np.random.Philox(key=noise_seed))
        return {**request, self.key: random.standard_normal(self.shape, np.float32)}


def find_keying(wanted: Wanted, metadata: Any) -> Keying | None:
    """How a server's noise is chosen: SGLang tells the size of the noise that it takes."""
    if wanted == "seed":
        return Keying(key="seed")
    output = metadata.get("output") if isinstance(metadata, Mapping) else None
    sizes: list[Any] = []
    if isinstance(output, Mapping) and metadata.get("object") == "action.metadata":
        width = output.get("padded_action_dim") or output.get("action_dim")
        sizes = [output.get("action_horizon"), width]
    if len(sizes) == 2 and all(type(size) is int and 0 < size < 1 << 16 for size in sizes):
        return Keying(key="noise", shape=tuple(sizes)) if wanted != "none" else None
    if wanted == "noise":
        raise ConfigError(
            "--policy.noise noise: the server does not tell the size of the noise that it takes. "
            "Where it takes a seed: --policy.noise seed."
        )
    return None


def check_keyed(answers: Sequence[Array], keying: Keying, source: str) -> None:
    """Take the answers to `CHECKED`. Raise where the first two are unlike: then results would not
    be what the report says. A server that answers every key alike has no noise to choose."""
    first, again, other = answers
    if first.shape == again.shape == other.shape:
        moved = np.abs(first - other).max()
        if np.abs(first - again).max() <= ALIKE * moved:
            return
    raise PolicyError(
        f"{source} answers one observation with one {keying.key!r} in two ways, so that results "
        f"cannot be keyed by trial. Say --policy.noise none, and the report says so too."
    )
