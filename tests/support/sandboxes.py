"""Sandboxes that are processes of this machine, behind an entrance as clouds have it: encrypted,
and open only to whoever brings a token. What stands in for the API of a provider starts them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hocket.cloud.sandbox import LISTEN_VARIABLE
from support.tls_pipe import carry

_READ = 1 << 16


def certified(folder: Path) -> ssl.SSLContext:
    """What a server on localhost needs; clients know it by `cert.pem` in the folder."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*words.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@dataclass
class Machine:
    """One sandbox: its process, and what its maker noted of it."""

    ident: str
    tags: dict[str, str]
    notes: dict[str, object] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    made_at: float = field(default_factory=time.time)

    def run(self, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        """Start a program in it. Where it listens is mapped to a free port of this machine."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        assert variables[LISTEN_VARIABLE] == "0.0.0.0:8080"
        self.log = folder / f"{self.ident}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **variables, LISTEN_VARIABLE: f"127.0.0.1:{self.port}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Sandboxes:
    """All of them, and the entrance. `is_open` false makes it answer as a proxy does before its
    sandbox is up."""

    def __init__(self, folder: Path, header: str, prefix: str = "") -> None:
        self.folder = folder
        self.machines: dict[str, Machine] = {}
        self.deleted: list[str] = []
        self.is_open = True
        self._header, self._prefix = header.lower(), prefix
        self._tls = certified(folder)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self._listener.getsockname()[1]}"
        self.strangers = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def make(self, tags: Mapping[str, str], **notes: object) -> Machine:
        ident = f"sb-{secrets.token_hex(6)}"
        self.machines[ident] = Machine(ident, dict(tags), notes)
        return self.machines[ident]

    def delete(self, ident: str) -> bool:
        machine = self.machines.pop(ident, None)
        if machine is not None:
            machine.end()
            self.deleted.append(ident)
        return machine is not None

    def close(self) -> None:
        self._listener.close()
        for ident in list(self.machines):
            self.delete(ident)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            carry(self._tls.wrap_socket(plain, server_side=True)) as outer,
        ):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := outer.recv(_READ)):
                    return
                head += data
            machine = self._find(head)
            if machine is None:
                self.strangers += 1
                outer.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                return
            try:
                if not self.is_open:
                    raise ConnectionRefusedError
                inner = socket.create_connection(("127.0.0.1", machine.port))
            except OSError:
                outer.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                return
            with inner:
                inner.sendall(head)
                back = threading.Thread(target=pump, args=(inner, outer), daemon=True)
                back.start()
                pump(outer, inner)
                back.join()

    def _find(self, head: bytes) -> Machine | None:
        for line in head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            if name.strip().lower() == self._header:
                token = value.strip().removeprefix(self._prefix)
                return next((m for m in self.machines.values() if m.token == token), None)
        return None


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_READ):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
