"""The file that holds API keys, for servers and for clients: one key a line; empty lines and lines
that begin with `#`, indented or not, are no keys. A comment names the client of the key below."""

from __future__ import annotations

from pathlib import Path

from hocket.errors import ConfigError
from hocket.system.text import printable

_LONGEST_NAME = 40

API_KEY_VARIABLE = "HOCKET_API_KEY"
"""The environment variable that holds a key where no file is named."""


def read_keys(file: str) -> list[str]:
    """All keys in a file, at least one. The error never says what stands in the file."""
    return list(named_keys(file))


def named_keys(file: str) -> dict[str, str]:
    """The keys in a file, each with the name of its client: the comment right above it, or its
    place among the keys."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise ConfigError(f"The key file {file!r} cannot be read: {why}.") from None
    keys: dict[str, str] = {}
    name = ""
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            name = printable(key.lstrip("# "))[:_LONGEST_NAME]
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(
                f"Line {number} of the key file {file!r} is no key: a key has no spaces, and "
                f"letters of ASCII alone. A comment has a line of its own that begins with #."
            )
        keys[key] = name or f"key {len(keys) + 1}"
        name = ""
    if not keys:
        raise ConfigError(f"The key file {file!r} holds no key. Write one on each line.")
    return keys


def read_key(file: str) -> str:
    """The one key in a client's file."""
    keys = read_keys(file)
    if len(keys) > 1:
        raise ConfigError(
            f"The key file {file!r} holds {len(keys)} keys, and a client has one. Write that one "
            f"into a file of its own."
        )
    return keys[0]
