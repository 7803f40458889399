"""The command of Docker or Podman: what is there, what is running, and what is to be run; and
images that are built from a Dockerfile once, and found again by what they were built from."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import WorkerFailed
from hocket.system.machine import is_gone, owner
from hocket.system.waits import awaiting

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
            if (path := shutil.which(name)) is None:
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


_REPOSITORY = "hocket-built"
_BUILD_S = 3600.0


def dockerfile(name: str) -> str:
    """The Dockerfile that comes with hocket for a simulator."""
    return (Path(__file__).parent / "dockerfiles" / name).read_text()


def find_dockerfile(path_of: str) -> Path:
    """The whole path of a Dockerfile, or of the one in a folder. Raises WorkerFailed."""
    path = Path(path_of).absolute()
    path = path / "Dockerfile" if path.is_dir() else path
    if not path.is_file():
        raise WorkerFailed(f"There is no Dockerfile at {str(path)!r}. Check --runtime.dockerfile.")
    return path


def build_once(command: Command, path_of: str) -> str:
    """The name of the image of a Dockerfile, or of the folder that holds it. It is built where no
    image of the same context is here; of two runs that start at once, one builds."""
    path = find_dockerfile(path_of)
    tag = f"{_REPOSITORY}:{context_hash(path)}"
    if command.has_image(tag):
        return tag
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket"
    cache.mkdir(parents=True, exist_ok=True)
    with (
        awaiting(f"the image of {path_of} to be built"),
        open(cache / f"{tag.replace(':', '-')}.lock", "w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not command.has_image(tag):
            words = ("build", "--tag", tag, "--file", str(path), str(path.parent))
            command.ask(*words, timeout_s=_BUILD_S)
    return tag


def context_hash(file: Path) -> str:
    """A short hash of the Dockerfile and of all that lies beside it: names, modes and contents."""
    digest = hashlib.sha256(f"{file.name}\0".encode())
    for path in sorted(file.parent.rglob("*")):
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(file.parent)}\0{mode:o}\0".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            with open(path, "rb") as content:
                digest.update(hashlib.sha256(content.read()).digest())
    return digest.hexdigest()[:16]
