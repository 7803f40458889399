"""Settings of the algorithms that learn from recordings beside what they collect. Importing this
needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket.core.settings import check_at_least
from hocket.errors import ConfigError


def check_shares(settings: Any, names: Sequence[str]) -> None:
    """Refuse settings that are set and not between 0 and 1."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value}; it must be between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class DAggerConfig:
    """Settings of rounds of corrections."""

    expert: str = ""
    """Who takes over, for dagger: any policy that hocket eval takes, such as metaworld-expert, a
    folder, a server, or a class of your own."""
    rounds: int = 4
    """How often corrections are collected, in equal parts of the run; --batch episodes each."""
    takeover: float = 0.4
    """How likely the expert takes over at each decision of the policy, in the first round; it falls
    in equal parts. It then acts to the end of the episode."""
    failures: str = ""
    """A run folder of failed episodes: the first round begins in states of these."""

    def __post_init__(self) -> None:
        check_at_least(self, rounds=1)
        check_shares(self, ("takeover",))


@dataclass(frozen=True, kw_only=True)
class RLPDConfig:
    """Settings of learning from all that was ever collected, and from recordings."""

    replays: int = 10
    """Steps of the critics for each chunk that was collected, for rlpd: more learn more from the
    same env steps, and take longer."""
    critics: int = 3
    """Critics that learn side by side."""

    def __post_init__(self) -> None:
        check_at_least(self, replays=1, critics=2)
