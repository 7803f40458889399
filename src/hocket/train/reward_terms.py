"""What `--reward` says: names of rewards, and their weights. Importing this needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError

SUCCESS, ENV = "success", "env"
"""The names of the rewards that hocket knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerm:
    """A part of the reward."""

    name: str
    """success, env, or package.module:function."""
    weight: float = 1.0

    @property
    def is_function(self) -> bool:
        """True if it is a function of the user's own."""
        return ":" in self.name


def reward_terms(text: str) -> tuple[RewardTerm, ...]:
    """Parse `success,0.1*env,-0.01*my_rewards:effort`."""
    terms = []
    for part in text.split(","):
        head, star, tail = part.strip().rpartition("*")
        try:
            term = RewardTerm(name=tail.strip(), weight=float(head) if star else 1.0)
        except ValueError:
            raise ConfigError(
                f"{head.strip()!r} is no weight of a reward; write 0.1*env, or success,0.1*env."
            ) from None
        if not term.is_function and term.name not in (SUCCESS, ENV):
            raise ConfigError(
                f"There is no reward {term.name!r}.{did_you_mean(term.name, (SUCCESS, ENV))} Known "
                f"are success and env; one of your own is named package.module:function."
            )
        terms.append(term)
    if len({term.name for term in terms}) < len(terms):
        raise ConfigError(f"A reward is named twice in {text!r}: give one weight to each.")
    return tuple(terms)
