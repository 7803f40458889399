"""The command of Docker or Podman: what is there, what is running, and what is to be run."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hocket.errors import WorkerFailed
from hocket.system.owner import is_gone, owner

_ASK_S = 60.0
"""Seconds for an answer to a question; a daemon under load takes several."""
_TAIL = 3000
"""Characters of its words that an error quotes."""
_TRIES = 2
"""Podman thaws a paused container before it kills it, and fails where that one ends by itself in
between: it is still there then, but not paused any more."""
_PREFIX = "hocket"
_NUMBERS = itertools.count()
_LOG = logging.getLogger(__name__)


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
        """True where an image is here. Raises WorkerFailed where the request fails."""
        try:
            self.ask("image", "inspect", "--format", "{{.Id}}", image)
        except WorkerFailed as exc:
            if "no such image" in str(exc).lower() or "image not known" in str(exc).lower():
                return False
            raise
        return True

    def remove(self, *names: str) -> None:
        """End containers by force, if they are there. The log tells which may be left."""
        words = ("rm", "--force", *(("--time", "0") if self.is_podman else ()))
        left = list(names)
        for _ in range(_TRIES):
            try:
                self.ask(*words, *left)
                return
            except WorkerFailed as exc:
                trouble = exc
            try:
                left = [name for name in self._listed() if name in names]
            except WorkerFailed:
                break
            if not left:
                return
        _LOG.warning("Containers may be left here: %s. %s", ", ".join(left), trouble)

    def sweep(self) -> None:
        """Remove the containers of processes that have ended, as after kill -9. They end by
        themselves, but one that is paused does not."""
        stray = [name for name in self._listed() if _is_stray(name)]
        if stray:
            self.remove(*stray)

    def _listed(self) -> list[str]:
        """The names of all containers of hocket's, running or ended."""
        words = ("--all", "--filter", f"name={_PREFIX}-", "--format", "{{.Names}}")
        return self.ask("ps", *words).split()


def container_name() -> str:
    """A new name, which says whose container it is. (A process may have several runtimes.)"""
    return f"{_PREFIX}-{owner()}-{next(_NUMBERS)}"


def _is_stray(name: str) -> bool:
    prefix, _, rest = name.partition("-")
    return prefix == _PREFIX and is_gone(rest.rpartition("-")[0])
