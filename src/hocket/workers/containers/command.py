"""The command of Docker or Podman: what is there, what is running, and what is to be run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.errors import WorkerFailed

# Chosen by hand.
_ASK_S = 60.0
"""Seconds for an answer to a question; a daemon under load takes several."""
_BUILD_S = 3600.0
_TAIL = 3000
"""Characters of its words that an error quotes."""
_PREFIX = "hocket"


@dataclass(frozen=True, slots=True)
class Command:
    """`docker` or `podman`, which take the same words for what is needed here."""

    path: str
    is_podman: bool

    @classmethod
    def find(cls, names: Sequence[str]) -> Command:
        """The first of these that answers. Raises WorkerFailed, with what each said."""
        trouble = []
        for name in names:
            path = shutil.which(name)
            if path is None:
                trouble.append(f"There is no command {name!r} here.")
                continue
            found = cls(path, name == "podman")
            try:
                found.ask("ps", "--quiet", "--filter", f"name={_PREFIX}-none")
            except WorkerFailed as exc:
                trouble.append(str(exc))
            else:
                return found
        raise WorkerFailed(" ".join(trouble))

    def ask(self, *arguments: str, timeout_s: float = _ASK_S) -> str:
        """What it prints. Raises WorkerFailed with its own words where it fails."""
        words = " ".join((os.path.basename(self.path), *arguments[:2]))
        try:
            done = subprocess.run(
                [self.path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise WorkerFailed(f"`{words}` did not answer for {timeout_s:g} s.") from exc
        except OSError as exc:
            raise WorkerFailed(f"`{words}` cannot be run: {exc}") from exc
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_TAIL:]
            raise WorkerFailed(f"`{words}` failed (code {done.returncode}): {said}")
        return done.stdout

    def has_image(self, image: str) -> bool:
        """Whether an image is here. A request that fails is no answer, and raises WorkerFailed."""
        try:
            self.ask("image", "inspect", "--format", "{{.Id}}", image)
        except WorkerFailed as exc:
            if "no such image" in str(exc).lower() or "image not known" in str(exc).lower():
                return False
            raise
        return True

    def build(self, tag: str, dockerfile: str, folder: str) -> None:
        self.ask("build", "--tag", tag, "--file", dockerfile, folder, timeout_s=_BUILD_S)

    def remove(self, *names: str) -> None:
        """End containers by force; those that are gone already are no matter."""
        with contextlib.suppress(WorkerFailed):
            self.ask("rm", "--force", *(("--time", "0") if self.is_podman else ()), *names)

    def sweep(self) -> list[str]:
        """Remove the containers of processes that have ended, as after kill -9; gives their names.
        They end by themselves, but one that is paused does not."""
        listed = self.ask(
            "ps", "--all", "--filter", f"name={_PREFIX}-", "--format", "{{.Names}}"
        ).split()
        stray = [name for name in listed if _is_stray(name)]
        if stray:
            self.remove(*stray)
        return stray


def container_name(number: int) -> str:
    """A name that says whose container it is: of which process, in which set of processes."""
    return "-".join((_PREFIX, *_owner(os.getpid()), str(number)))


def _owner(pid: int) -> tuple[str, str, str, str]:
    """Boot, process namespace, process id, and when the process began: no two are ever the same."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read()[:8]
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return boot, str(namespace), str(pid), _began(pid)


def _began(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _is_stray(name: str) -> bool:
    parts = name.split("-")
    if len(parts) != 6 or parts[0] != _PREFIX or not parts[3].isdigit():
        return False
    boot, namespace, pid, began = parts[1:5]
    ours = _owner(int(pid))
    if boot != ours[0]:
        return True  # The machine was started anew since.
    # Processes of another namespace cannot be seen from here.
    return namespace == ours[1] and began != ours[3]
