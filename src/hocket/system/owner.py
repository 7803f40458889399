"""Whose a container or a machine elsewhere is: names by which the next start knows that the process
that asked for it has ended."""

from __future__ import annotations

import hashlib
import os
import platform

from hocket.system.machine import stat_of


def owner(pid: int | None = None) -> str:
    """A process of this machine: boot, process namespace, process id, and when the process began,
    with dashes between; no two are ever the same."""
    pid = os.getpid() if pid is None else pid
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{_boot()[:8]}-{namespace}-{pid}-{_began(pid)}"


def is_gone(name: str) -> bool:
    """True where the process of this machine that `owner` named has ended; false where that cannot
    be seen from here."""
    parts = name.split("-")
    if len(parts) != 4 or not parts[2].isdigit():
        return False
    boot, namespace, _, began = owner(int(parts[2])).split("-")
    if parts[0] != boot:
        return True  # The machine was started anew since.
    # Processes of another namespace cannot be seen from here.
    return parts[1] == namespace and parts[3] != began


def host() -> str:
    """This machine, as others that use the same account are told apart from it."""
    try:
        with open("/etc/machine-id") as file:
            number = file.read().strip()
    except OSError:
        number = ""
    return hashlib.sha256(f"{number} {platform.node()}".encode()).hexdigest()[:16]


def neighbourhood() -> str:
    """This boot of this machine, network namespace and user: processes of one neighbourhood can
    hand each other files over a local socket. Raises OSError where the system does not say."""
    return f"{_boot()}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _began(pid: int) -> str:
    try:
        return stat_of(pid)[19]
    except OSError:
        return ""
