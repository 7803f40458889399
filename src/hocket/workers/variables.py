"""Environment variables of workers in containers and on rented machines: those that are told, and
secrets, which are kept nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hocket.errors import ConfigError

_SECRET = re.compile(r"(?:SetEnv=)?([^=]*(?:token|key|secret|password)[^=]*)=", re.IGNORECASE)

_ADDRESS = re.compile(r"://[^/@\s]+:[^/@\s]+@|[?&]\w*(?:token|key|secret|password)=", re.IGNORECASE)
_SETTING = re.compile(
    r"(?:^|_)(?:password|secret|api_key|(?:access|api|auth)_token|authorization)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """What a worker finds in its environment."""

    env: tuple[str, ...] = ()
    """Environment variables: NAME=VALUE. They stand in run.yaml and on cards."""
    secret: tuple[str, ...] = ()
    """NAME of an environment variable that workers get as it is here, and again at resume. Its
    value is kept nowhere."""

    def __post_init__(self) -> None:
        self.secrets()

    def secrets(self) -> dict[str, str]:
        """The secrets by name; ConfigError where one is not set."""
        for name in self.secret:
            if not re.fullmatch(r"\w+", name):
                raise ConfigError("--runtime.secret takes the NAME of a variable, without a value.")
            if name not in os.environ:
                raise ConfigError(
                    f"--runtime.secret {name}: there is no variable {name} here. Set it where you "
                    f"start the run, or resume it."
                )
        return {name: os.environ[name] for name in self.secret}


def refuse_secrets(entries: Iterable[str]) -> None:
    """Refuse values, given as NAME=VALUE, that are secrets by their names: they would be kept."""
    for entry in entries:
        if found := _SECRET.match(entry):
            raise ConfigError(
                f"{found[1]} looks like a secret, and its value would stand in run.yaml, on cards "
                f"and among the arguments of processes. Set it in your environment, and give "
                f"--runtime.secret {found[1]} instead."
            )


def refuse_secret_settings(value: object, name: str = "") -> None:
    """Refuse names and settings of envs and policies that hold a secret: by the name of a setting,
    or in an address."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            refuse_secret_settings(each, str(key))
    elif isinstance(value, (list, tuple)):
        for each in value:
            refuse_secret_settings(each, name)
    elif isinstance(value, str) and (_ADDRESS.search(value) or (value and _SETTING.search(name))):
        raise ConfigError(
            f"{name or 'An address'} holds a secret, which would stand in run.yaml and on cards. "
            "Let the env or the policy read it from a variable of its environment, or from a file."
        )
