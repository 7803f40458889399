"""An env that cannot be what it was asked to be, and says so with one of hocket's own errors."""

from __future__ import annotations

from typing import Any

from hocket.errors import ConfigError


def make() -> Any:
    raise ConfigError("This env has no camera 'left'.")
