"""The key that sites show, and the certificate by which they know the driver: one small file.

The file holds the key in its first line and, where the connection leaves this machine, the driver's
certificate after it. The certificate is made at the driver's start and trusted by whoever has the
file, and by nobody else.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import secrets
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import ConfigError, MissingExtraError
from hocket.system.durable import drafted

_BEGIN = "-----BEGIN CERTIFICATE-----"
_DAYS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a site needs to be admitted, and to know the driver."""

    key: str
    certificate: str = ""
    """PEM; empty where the connection does not leave this machine."""

    @classmethod
    def parse(cls, text: str, source: str) -> Credentials:
        """The credentials in a key file; the error never quotes it."""
        head, begin, tail = text.partition(_BEGIN)
        lines = [line.strip() for line in head.splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if len(keys) != 1 or not keys[0].isascii() or " " in keys[0]:
            raise ConfigError(f"{source} is no key file of a driver: it must hold one key.")
        return cls(key=keys[0], certificate=begin + tail.rstrip("\n") + "\n" if begin else "")

    def text(self) -> str:
        return f"{self.key}\n{self.certificate}"

    def save(self, path: Path) -> None:
        _write_secret(path, self.text())

    def client_context(self) -> ssl.SSLContext:
        """TLS that trusts the driver's certificate alone, under whatever name it is reached."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSecrets:
    """What sites know a driver by. It is kept beside the run until that is over, so that a driver
    that goes on with it is known to sites that are still there."""

    key: str
    certificate: str = ""
    private: str = ""
    """The certificate's private key, PEM."""
    port: int = 0

    @classmethod
    def new(cls, *, encrypted: bool, port: int = 0) -> DriverSecrets:
        key = secrets.token_urlsafe(32)
        if not encrypted:
            return cls(key=key, port=port)
        certificate, private = _new_certificate()
        return cls(key=key, certificate=certificate, private=private, port=port)

    @classmethod
    def load(cls, path: Path) -> DriverSecrets | None:
        """The secrets of an earlier driver of the same run; None where there are none."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, path: Path) -> None:
        _write_secret(path, json.dumps(dataclasses.asdict(self)))

    @property
    def credentials(self) -> Credentials:
        """The part that sites are given."""
        return Credentials(key=self.key, certificate=self.certificate)

    def server_context(self) -> ssl.SSLContext | None:
        """TLS with the certificate; None where there is none."""
        if not self.certificate:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The ssl module takes certificates from files alone.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.private + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def _write_secret(path: Path, text: str) -> None:
    """Write a file that its owner alone can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with drafted(path) as draft:
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)


def _new_certificate() -> tuple[str, str]:
    """A new certificate and its private key, both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as exc:
        raise MissingExtraError(
            "Connections from other machines are encrypted, which needs the package "
            "'cryptography'. Run: pip install 'hocket[machines]'"
        ) from exc
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hocket driver")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of machines differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    return pem, secret
