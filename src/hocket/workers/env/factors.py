"""What is disturbed of an env, as the user writes it: `image:blur=2`, `prompt:empty`, and several
at once as `image:noise=0.1+state:noise=0.02`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hocket.core.contracts.runtime import Factor
from hocket.errors import ConfigError
from hocket.system.text import did_you_mean

FACTORS: Mapping[str, str] = {
    "image:blur": "blur every picture, standard deviation in pixels",
    "image:noise": "add noise to every pixel, standard deviation as a share of white",
    "image:occlude": "black out a square of this share of every picture, elsewhere in each trial",
    "image:blank": "black pictures: the policy is blind",
    "prompt:empty": "no prompt",
    "prompt:file": "other prompts: a YAML file, prompt or task to new prompt",
    "state:noise": "add noise to every observed number, standard deviation in its own units",
    "action:noise": "add noise to every executed action, standard deviation in its own units",
    "camera:shift": "move every camera this far, in metres, elsewhere in each trial (MuJoCo)",
    "light:dim": "take this share of all light away (MuJoCo)",
}
"""Everything that can be disturbed, and what that does."""
_WITHOUT_VALUE = ("image:blank", "prompt:empty")
_SHARES = ("image:occlude", "light:dim")


def parse_factors(text: str) -> tuple[Factor, ...]:
    """What a text asks for: factors joined with `+`; none where it is empty."""
    return tuple(_parse(one.strip()) for one in text.split("+")) if text.strip() else ()


def split_arms(text: str) -> tuple[str, ...]:
    """The arms of an evaluation, each of one or several factors, in the order given."""
    arms = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    for arm in arms:
        parse_factors(arm)
    if not arms:
        raise ConfigError("No factor is named. Give one, as in --perturb image:blur=2.")
    return arms


def _parse(text: str) -> Factor:
    name, equals, value = text.partition("=")
    if name not in FACTORS:
        raise ConfigError(
            f"There is nothing called {name!r} to disturb.{did_you_mean(name, FACTORS)} Known: "
            f"{', '.join(FACTORS)}."
        )
    if name in _WITHOUT_VALUE:
        if equals:
            raise ConfigError(f"{name} takes no value.")
        return Factor(name=name)
    if name == "prompt:file":
        return Factor(name=name, prompts=_prompts(value))
    try:
        amount = float(value)
    except ValueError:
        raise ConfigError(f"{text!r} needs a number, as in {name}=0.1.") from None
    most = 1.0 if name in _SHARES else math.inf
    if not 0 < amount <= most or not math.isfinite(amount):
        raise ConfigError(
            f"{text!r}: the number must be above 0{' and at most 1' if most == 1 else ''}."
        )
    return Factor(name=name, amount=amount)


def _prompts(file: str) -> dict[str, str]:
    from hocket.system.bounded_yaml import read_yaml

    found = read_yaml(file, "The prompts")
    is_sound = isinstance(found, dict) and all(
        isinstance(part, str) for item in found.items() for part in item
    )
    if not found or not is_sound:
        raise ConfigError(f"{file!r} must be a YAML mapping of prompts, or tasks, to new prompts.")
    return dict(found)
