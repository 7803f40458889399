"""Images that are built from a Dockerfile once, and found again by what they were built from."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from hocket.errors import WorkerFailed
from hocket.system.waits import awaiting
from hocket.workers.containers.command import Command

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
