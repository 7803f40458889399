"""Who may ask: whoever has the token, under a name of this machine, from a page of ours."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from hocket.errors import ConfigError
from hocket.system.exposure import is_loopback, read_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a request must bring. The token is the first part of every path, so that a page's own
    links carry it, and no cookie is needed."""

    token: str
    hosts: Collection[str] = ()
    """Names beyond loopback's under which the server may be asked."""
    scheme: str = "http"

    def path(self, target: str) -> str | None:
        """A request's path without its token; None where the token is missing or wrong."""
        _, first, *rest = [*target.split("/"), ""]
        if not hmac.compare_digest(first.encode(), self.token.encode()) or not rest:
            return None
        return "/" + "/".join(rest).rstrip("/")

    def knows_host(self, host: str | None) -> bool:
        """True if a request was meant for this machine: a name that somebody else made lead here
        is none of ours, while an address leads nowhere else. The port may be another, as through a
        tunnel."""
        name = _name(f"//{host}") if host else None
        if name is None or is_loopback(name) or name in self.hosts:
            return name is not None
        return bool(self.hosts) and _is_address(name)

    def knows_origin(self, origin: str | None, host: str | None) -> bool:
        """True if a page that asks is one of this server's own; who is no page says nothing."""
        return origin is None or origin == f"{self.scheme}://{host}"


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def names_of(host: str) -> tuple[str, ...]:
    """The names under which a server that listens at `host` may be asked, the first to be shown;
    none beyond those of loopback where it listens there."""
    if is_loopback(host):
        return ()
    is_all = _is_address(host) and ipaddress.ip_address(host).is_unspecified
    return (socket.gethostname(), socket.getfqdn()) if is_all else (host,)


def new_token() -> str:
    return secrets.token_urlsafe(18)


def read_key(file: str) -> str:
    """The token that a file's first key is. It stands in an address, so that only letters that
    need no escape there make one."""
    key = read_keys(file)[0]
    if not re.fullmatch(r"[A-Za-z0-9_.~-]{16,}", key):
        raise ConfigError(
            f"The first key of {file!r} is no token for an address: 16 letters or more, of A-Z, "
            f"a-z, 0-9 and -._~."
        )
    return key
