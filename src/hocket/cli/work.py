"""`hocket work`."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from hocket.cli import OK
from hocket.cli.flags.parse import parse
from hocket.core.plugins import require_extra
from hocket.errors import ConfigError, UsageError
from hocket.system.text import printable

if TYPE_CHECKING:
    from hocket.machines.commands import Outlet
    from hocket.machines.protocol import Welcome
    from hocket.machines.site.link import DriverLink
    from hocket.machines.site.site import Site
    from hocket.machines.site.site_work import SiteWork

_TELL_S = 10.0
"""Seconds between two lines that say what a site does."""
_LOOK_S = 0.2
_LAST_S = 20.0
"""Seconds for a site that is told to end, before it is ended."""


@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """Take part in a run that a driver elsewhere leads (hocket eval or hocket train --machines
    listen): load its policy, run the trials that it leases to this machine, deliver their episodes.
    Ctrl-C or SIGTERM gives everything back. Started by whatever a site has: srun, a Kubernetes Job,
    a shell."""

    connect: Annotated[str, arg(metavar="wss://HOST:PORT")]
    """The driver."""
    key_file: Annotated[str, arg(metavar="FILE")]
    """The key and the certificate that the driver wrote. - reads them from standard input up to an
    empty line, and ends when standard input does."""
    name: str = ""
    """What the site is called; by default the machine's name."""
    wait_s: Annotated[float, arg(name="wait", metavar="SECONDS")] = 600.0
    """How long the driver may be away before the site gives up."""
    cores: Annotated[str, arg(metavar="0,1,...")] = ""
    """Keep to these cores."""


def run(arguments: Sequence[str]) -> int:
    """Work until the driver says that there is no more to do."""
    flags = parse(WorkFlags, arguments, verb="work")
    from hocket.machines.commands import Outlet
    from hocket.machines.credentials import Credentials
    from hocket.machines.site.link import DriverLink
    from hocket.machines.site.site import Site

    if not flags.connect.startswith(("ws://", "wss://")):
        raise UsageError(f"--connect {flags.connect} is no address such as wss://head:7000.")
    if flags.cores:
        _keep_to(flags.cores)
    text = _read_key(flags.key_file)
    credentials = Credentials.parse(text, f"--key-file {flags.key_file}")
    if flags.connect.startswith("wss://") and not credentials.certificate:
        raise ConfigError(f"{flags.key_file} has no certificate: it is not of that driver.")
    if flags.connect.startswith("ws://") and credentials.certificate:
        raise UsageError(
            f"{flags.key_file} is for an encrypted connection, which the key must not leave: "
            f"--connect wss{flags.connect[2:]}"
        )
    name = flags.name or f"{os.uname().nodename}-{os.getpid()}"
    kinds = {"collect": functools.partial(_collecting, Outlet.found())}
    site = Site(name, kinds, lambda: _end_soon(site))
    signal.signal(signal.SIGTERM, lambda *_: site.leave())
    if flags.key_file == "-":
        _follow_input(site)
    else:
        threading.Thread(target=_tell, args=(site,), name="hocket-tell", daemon=True).start()
    try:
        site.work(DriverLink(flags.connect, credentials, site, wait_s=flags.wait_s))
    except KeyboardInterrupt:
        site.leave()
        raise
    return OK


def _tell(site: Site) -> None:
    """Say what the site does when that changes, and now and then."""
    began, said, at = time.monotonic(), "", 0.0
    while True:
        now, told = time.monotonic(), site.doing
        kind = told.partition(":")[0]
        if kind != said or now - at >= _TELL_S:
            said, at = kind, now
            sys.stderr.write(printable(f"[{now - began:7.1f} s] {told}") + "\n")
            sys.stderr.flush()
        time.sleep(_LOOK_S)


def _collecting(outlet: Outlet | None, welcome: Welcome, link: DriverLink) -> SiteWork:
    require_extra("policies", "trained")
    from hocket.machines.training.site import CollectingWork

    return CollectingWork(welcome, link, outlet)


def _keep_to(cores: str) -> None:
    try:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    except (ValueError, OSError) as exc:
        raise UsageError(f"--cores {cores} names no cores of this machine: {exc}.") from exc


def _read_key(file: str) -> str:
    if file == "-":
        lines = []
        while (line := sys.stdin.buffer.readline()).strip():
            lines.append(line)
        return b"".join(lines).decode("utf-8", "replace")
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The key file {file!r} cannot be read: {exc}") from None


def _follow_input(site: Site) -> None:
    """Take weights from whoever started this process, and end when that is gone."""
    from hocket.machines.commands import HANDED

    # Python aborts where it closes at its end what a thread still reads.
    assert isinstance(sys.stdin, io.TextIOWrapper)
    stream = sys.stdin.detach()
    sys.stdin = open(os.devnull)  # noqa: SIM115

    def watch() -> None:
        while len(head := stream.read(HANDED.size)) == HANDED.size:
            version, size = HANDED.unpack(head)
            data = stream.read(size)
            if len(data) < size:
                break
            site.receive(version, data)
        site.leave()

    threading.Thread(target=watch, name="hocket-input", daemon=True).start()


def _end_soon(site: Site) -> None:
    """End this process, though a policy that is loading, or hangs, does not look."""

    def end() -> None:
        why = site.trouble or "This site was told to leave."
        text = printable(f"{why} It has not ended by itself in {_LAST_S:g} s.") + "\n"
        # Nobody may be reading: a pipe that is full holds up whoever writes, and not the end.
        telling = threading.Thread(target=sys.stderr.write, args=(text,), daemon=True)
        telling.start()
        telling.join(1.0)
        os._exit(1)

    timer = threading.Timer(_LAST_S, end)
    timer.daemon = True
    timer.start()
