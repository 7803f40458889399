"""The machines that a run is on: they listen, have sites started, and do one run after another."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.engine.garbage import gc_frozen
from hocket.errors import UsageError
from hocket.machines.attendance import Post
from hocket.machines.commands import CommandLauncher, places_behind_ssh, places_here
from hocket.machines.credentials import DriverSecrets
from hocket.machines.driver import OUTLIVES, Driver
from hocket.machines.server import Carrier, Launcher, Server
from hocket.runs.elsewhere import Work
from hocket.runs.sites import MachinesConfig, SiteConfig
from hocket.system.text import did_you_mean, printable
from hocket.workers.remote.ssh import SshConfig

if TYPE_CHECKING:
    from hocket.train.collect.elsewhere import Collecting, Sites

KINDS = ("local", "listen", "ssh", "ray")
Drive = Callable[[Work, SiteConfig, Post], Driver]


class Machines:
    """An `Elsewhere` for one run after the other. A context manager; closing twice is safe."""

    def __init__(
        self, config: MachinesConfig, *, more: bool = False, launcher: Launcher | None = None
    ) -> None:
        """`more`: sites stay when a run is over, for the next one. `launcher`: starts sites
        instead of the configuration's own."""
        self._config = config
        self._more = more
        self._address = _address(config)
        self._is_encrypted = config.kind in ("listen", "ray")
        self._secrets: DriverSecrets | None = None
        self._listener: socket.socket | None = None
        self._server: Server | None = None
        self.launcher = launcher or _launcher(config)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.launcher.close()
        if self._listener is not None:
            self._listener.close()

    def collect(self, asked: Collecting) -> Sites:
        """The sites that collect for a training run here."""
        from hocket.machines.training.sites import CollectingSites

        return CollectingSites(self, asked)

    @property
    def carrier(self) -> Carrier | None:
        """The launcher, where it brings weights to sites beside their connections."""
        return self.launcher if isinstance(self.launcher, Carrier) else None

    def nudge(self) -> None:
        """Let the driver of the present run take a turn soon. May come from any thread."""
        if self._server is not None:
            self._server.nudge()

    def roll(self, work: Work, drive: Drive = Driver) -> None:
        """Run what remains of a run, with the driver that `drive` makes."""
        folder = work.folder.root
        found, listener = self._open(folder)
        found.save(folder / SECRETS)
        if self._config.kind == "listen":
            self._invite(folder, found)
        self.launcher.start(found.port, found.credentials.text())
        site = self._config.site
        server = Server(listener, found, self.launcher, lambda post: drive(work, site, post))
        self._server = server
        work.keeping.keep(OUTLIVES, self.launcher.outlives)
        with contextlib.suppress(KeyboardInterrupt), gc_frozen(len(work.planned)):
            asyncio.run(server.run(goes_on=self._more))
        # After a crash the file stays: sites may still be there, and know the next driver by it.
        (folder / SECRETS).unlink(missing_ok=True)

    def _open(self, folder: Path) -> tuple[DriverSecrets, socket.socket]:
        """Listen, with the key and at the port of an earlier driver of the run where there was
        one."""
        if self._secrets is not None and self._listener is not None:
            return self._secrets, self._listener
        host, port = self._address
        earlier = DriverSecrets.load(folder / SECRETS) if self._config.kind == "listen" else None
        found = earlier or DriverSecrets.new(encrypted=self._is_encrypted)
        try:
            listener = socket.create_server((host, port or found.port), backlog=1024)
        except OSError as exc:
            raise UsageError(f"Nobody can listen on {host}:{port or found.port}: {exc}.") from exc
        self._listener = listener
        self._secrets = dataclasses.replace(found, port=listener.getsockname()[1])
        return self._secrets, listener

    def _invite(self, folder: Path, found: DriverSecrets) -> None:
        """Write the key file, and print how sites join."""
        file = Path(self._config.site.key_file or folder.parent / "site.key")
        found.credentials.save(file)
        host = self._address[0]
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host
        told = f"hocket work --connect wss://{host}:{found.port} --key-file {file}"
        sys.stderr.write(printable(f"Sites join with: {told}") + "\n")
        sys.stderr.flush()


SECRETS = ".driver"
"""The file in the run folder by which a driver that goes on is known to the sites."""


def _address(config: MachinesConfig) -> tuple[str, int]:
    """Where the driver listens: sites on this machine, and those behind ssh, call it locally."""
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
        count = int(config.argument) if config.argument.isdigit() else 0
        return CommandLauncher(places_here(count))
    if kind == "listen":
        return CommandLauncher(())
    site = config.site
    if kind == "ssh":
        there = SshConfig(python=site.python, folder=site.folder, options=site.options)
        return CommandLauncher(places_behind_ssh(config.argument, there))
    if kind == "ray":
        from hocket.machines.ray import RayLauncher

        return RayLauncher(config)
    raise UsageError(
        f"There are no machines {config.where!r}.{did_you_mean(kind, KINDS)} Give local:N, "
        f"listen[:HOST:PORT], ssh:HOST,... or ray[://HOST:PORT]."
    )
