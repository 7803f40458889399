"""Who may connect: keys, the rule for what listens beyond loopback, and TLS."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.adapters.policies.openpi.connection import API_KEY_VARIABLE
from hocket.errors import ConfigError, UsageError

SCHEME = "Api-Key "


@dataclass(frozen=True, slots=True)
class Keys:
    """Accepted keys, by digest: comparing digests of one length takes the same time for all."""

    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, keys: Sequence[str]) -> Keys:
        return cls(tuple(hashlib.sha256(key.encode()).digest() for key in keys))

    def __bool__(self) -> bool:
        return bool(self.digests)

    def accept(self, header: str | None) -> bool:
        """Whether an Authorization header carries one of the keys; any does where there is none."""
        if not self.digests:
            return True
        if header is None or not header.startswith(SCHEME):
            return False
        given = hashlib.sha256(header[len(SCHEME) :].strip().encode()).digest()
        matches = [hmac.compare_digest(given, known) for known in self.digests]
        return any(matches)


NO_KEYS = Keys(())


def load_keys(file: str | None) -> Keys:
    """Keys from a file, one a line, or else from the environment."""
    if file is None:
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        return Keys.of([key] if key else [])
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as exc:
        raise ConfigError(f"The key file {file!r} cannot be read: {exc}") from exc
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"The key file {file!r} holds no key. Write one on each line.")
    return Keys.of(keys)


def check_exposure(host: str, keys: Keys, *, insecure: bool) -> None:
    """Nothing without a key listens beyond loopback, unless the user insists."""
    if keys or insecure or is_loopback(host):
        return
    raise UsageError(
        f"{host} can be reached from other machines. Give a --key-file (or {API_KEY_VARIABLE}), or "
        f"say --insecure to serve anyone who can connect."
    )


def is_loopback(host: str) -> bool:
    """Whether a host means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
