"""A server of ours: who can reach it (loopback alone, or others, where something guards it), the
keys that guard it, what is said of strangers, and until when it is there.

A file of API keys, for servers and for clients, has one key a line; empty lines and lines that
begin with `#`, indented or not, are no keys. A comment names the client of the key below.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from hocket.errors import ConfigError, UsageError
from hocket.system.text import printable

Server = TypeVar("Server")
STRANGERS = logging.getLogger("hocket.strangers")
"""For libraries that serve: what strangers send is no event of ours."""
STRANGERS.setLevel(logging.CRITICAL)


def is_loopback(host: str) -> bool:
    """True where a host's name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, is_guarded: bool, advice: str) -> None:
    """Refuse to listen beyond loopback where nothing guards the server; `advice` says what may."""
    if not is_guarded and not is_loopback(host):
        raise UsageError(f"{host} can be reached from other machines. {advice}")


def load_tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS from certificate files; None without them."""
    if certificate is None:
        if key is not None:
            raise ConfigError("A TLS key needs its certificate: --tls-cert.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"The certificate {certificate!r} cannot be used: {exc}") from exc
    return context


def ignore_strangers() -> None:
    """Print nothing about connections that this loop cannot take: they are tried again."""
    loop = asyncio.get_running_loop()

    def say(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), OSError):
            loop.default_exception_handler(context)

    loop.set_exception_handler(say)


async def serve_until_signal(
    server: AbstractAsyncContextManager[Server],
    on_ready: Callable[[Server], object],
    *,
    until: int | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, or until the file `until` that can be read from is at its
    end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    ignore_strangers()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until is not None:
        loop.add_reader(until, stop.set)
    async with server as ready:
        on_ready(ready)
        await stop.wait()


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
