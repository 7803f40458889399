"""What settings of all kinds are checked for."""

from __future__ import annotations

import json
from typing import Any

from hocket.errors import ConfigError


def check_at_least(settings: object, **lowest: int) -> None:
    """Refuse numbers that are below the lowest value given for their name."""
    for name, low in lowest.items():
        value = getattr(settings, name)
        if isinstance(value, (int, float)) and value < low:
            raise ConfigError(f"{name} is {value}; it must be at least {low}.")


def check_among(settings: object, **known: tuple[str, ...]) -> None:
    """Refuse a word that is none of those given for its name."""
    for name, (*others, last) in known.items():
        if (value := getattr(settings, name)) not in (*others, last):
            words = f"{', '.join(map(repr, others))} or {last!r}"
            raise ConfigError(f"{name} is {words}, not {value!r}.")


def json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that a setting of this name is."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"{name} must be a JSON object, not {text!r} ({exc}).") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a JSON object, not {text!r}.")
    return found
