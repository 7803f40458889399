"""Who can reach a server of ours: loopback alone, or others, and then with TLS."""

from __future__ import annotations

import ipaddress
import ssl

from hocket.errors import ConfigError


def is_loopback(host: str) -> bool:
    """True where a host's name or address is this machine's own."""
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
