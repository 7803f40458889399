"""What `--reward` says: names of rewards, and their weights. Importing this needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hocket.core.plugins import did_you_mean
from hocket.errors import ConfigError

JUDGE = "judge.json"
"""What the run folder of a reward model has."""
SUCCESS, ENV = "success", "env"
"""The names of the rewards that hocket knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerm:
    """A part of the reward."""

    name: str
    """success, env, package.module:function, or the folder of a reward model."""
    weight: float = 1.0

    @property
    def is_function(self) -> bool:
        """True if it is a function of the user's own."""
        return ":" in self.name

    @property
    def is_model(self) -> bool:
        """True if it is what `--algo reward` made."""
        return Path(self.name, JUDGE).is_file()


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
        if not (term.is_function or term.is_model) and term.name not in (SUCCESS, ENV):
            raise ConfigError(
                f"There is no reward {term.name!r}.{did_you_mean(term.name, (SUCCESS, ENV))} Known "
                f"are success and env; a function of your own is named package.module:function, "
                f"and a reward model by its run folder (hocket train --algo reward)."
            )
        terms.append(term)
    if len({term.name for term in terms}) < len(terms):
        raise ConfigError(f"A reward is named twice in {text!r}: give one weight to each.")
    return tuple(terms)
