"""Takes from Python what a Mac lacks, for any interpreter that has this folder on PYTHONPATH.

Calls that Linux alone has are gone, /proc is not there, and the C library has no prctl and no
syncfs. (The system itself stays Linux: this shows what is asked for, not what a Mac would answer.)
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import fcntl
import os
import posix
import select
import socket
import sys
import time
from typing import Any

GONE = {
    os: "eventfd eventfd_read eventfd_write EFD_CLOEXEC EFD_NONBLOCK memfd_create MFD_CLOEXEC"
    " MFD_ALLOW_SEALING posix_fallocate posix_fadvise sched_getaffinity sched_setaffinity"
    " sched_getscheduler sched_setscheduler sched_param SCHED_OTHER SCHED_BATCH waitid P_ALL P_PID"
    " P_PIDFD WNOWAIT WEXITED pidfd_open pipe2 splice copy_file_range O_PATH O_TMPFILE O_DIRECT"
    " getresuid getresgid setresuid setresgid getrandom getxattr setxattr",
    select: "epoll",
    socket: "SOCK_SEQPACKET SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC MSG_NOSIGNAL SO_PEERCRED"
    " SO_DOMAIN SO_PROTOCOL SO_PASSCRED TCP_KEEPIDLE",
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SEAL_SEAL F_SEAL_SHRINK F_SEAL_GROW F_SEAL_WRITE",
    time: "CLOCK_BOOTTIME pthread_getcpuclockid",
}
TWINS = {os: posix, socket: _socket}
"""Modules that hold the same names."""


def _is_hidden(path: object) -> bool:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str) and (path == "/proc" or path.startswith("/proc/"))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_hidden(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def _hiding(call: Any) -> Any:
    def hidden(path: Any, *arguments: Any, **named: Any) -> Any:
        if _is_hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(path, *arguments, **named)

    return hidden


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "syncfs"):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


if sys.platform == "linux":
    for module, names in GONE.items():
        for name in names.split():
            for each in (module, TWINS.get(module)):
                if each is not None and hasattr(each, name):
                    delattr(each, name)
    os.stat, os.lstat, os.readlink = map(_hiding, (os.stat, os.lstat, os.readlink))
    ctypes.CDLL = _Library  # type: ignore[misc]
    sys.addaudithook(_refuse)
