"""The machines that a run is on: listens, has sites started, and runs what there is to run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from pathlib import Path

from hocket.core.plugins import did_you_mean
from hocket.core.text import printable
from hocket.errors import UsageError
from hocket.machines.config import MachinesConfig
from hocket.machines.credentials import Credentials, new_certificate, new_key
from hocket.machines.driver import DriverConfig
from hocket.machines.local import LocalLauncher
from hocket.machines.server import Launcher, Server
from hocket.runs.elsewhere import Work

KINDS = ("local", "listen", "ssh", "ray")


class Listening:
    """Starts nothing: sites are started by whoever has machines, and come by themselves."""

    outlives = True

    def start(self, port: int, credentials: str) -> None: ...

    def poll(self) -> list[tuple[str, str]]:
        return []

    def is_hopeless(self) -> bool:
        return False

    def close(self) -> None: ...


class Machines:
    """An `Elsewhere` for one run after the other. A context manager; closing twice is safe."""

    def __init__(self, config: MachinesConfig, *, more: bool = False) -> None:
        """`more`: sites stay when a run is over, for the next one."""
        self._config = config
        self._more = more
        self._context: ssl.SSLContext | None = None
        host, port = _address(config)
        certificate = ""
        if host != "127.0.0.1":
            certificate, self._context = new_certificate()
        self._credentials = Credentials(key=new_key(), certificate=certificate)
        self.launcher = _launcher(config)
        try:
            self._listener = socket.create_server((host, port), backlog=1024)
        except OSError as exc:
            raise UsageError(f"Nobody can listen on {host}:{port}: {exc}.") from exc
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.launcher.close()
        self._listener.close()

    def roll(self, work: Work) -> None:
        """Run what remains of a run."""
        if self._config.kind == "listen":
            self._invite(work.ledger.folder.root)
        self.launcher.start(self.port, self._credentials.text())
        site = self._config.site
        server = Server(self._listener, self._credentials.key, self._context, self.launcher)
        config = DriverConfig(
            lease_s=site.lease_s,
            mixed=site.mixed,
            second_copies=site.copies,
            honours=bool(work.ledger.meta().get(OUTLIVES)),
        )
        work.ledger.keep(OUTLIVES, self.launcher.outlives)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(server.run(work, config, goes_on=self._more))

    def _invite(self, folder: Path) -> None:
        """Write the key file, and say how sites join."""
        file = Path(self._config.site.key_file or folder.parent / "site.key")
        self._credentials.save(file)
        host = self._listener.getsockname()[0]
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host
        scheme = "ws" if self._context is None else "wss"
        sys.stderr.write(
            printable(
                f"Sites join with: hocket work --connect {scheme}://{host}:{self.port} "
                f"--key-file {file}"
            )
            + "\n"
        )
        sys.stderr.flush()


OUTLIVES = "sites_outlive"
"""The key in the ledger's `meta` that says whether sites may have outlived the driver."""


def _address(config: MachinesConfig) -> tuple[str, int]:
    """Where the driver listens. Sites on this machine, and those behind ssh, call it locally."""
    if config.kind == "listen":
        host, _, port = config.argument.rpartition(":")
        if config.argument and not port.isdigit():
            raise UsageError(
                f"--machines {config.where}: give host and port, as in listen:0.0.0.0:7000."
            )
        return host or "0.0.0.0", int(port or 0)
    return ("0.0.0.0" if config.kind == "ray" else "127.0.0.1"), 0


def _launcher(config: MachinesConfig) -> Launcher:
    kind = config.kind
    if kind == "local":
        if not config.argument.isdigit():
            raise UsageError("Say how many sites, as in --machines local:3.")
        return LocalLauncher(int(config.argument))
    if kind == "listen":
        return Listening()
    raise UsageError(
        f"There are no machines {config.where!r}.{did_you_mean(kind, KINDS)} Give local:N, "
        f"listen[:HOST:PORT], ssh:HOST,... or ray[://HOST:PORT]."
    )
