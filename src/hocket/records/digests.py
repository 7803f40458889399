"""Digests of files and folders; a file that did not change is read once."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

_MOST_FILES = 2000
"""Files of one folder that are named; with more it is no checkpoint."""


def files_in(place: Path) -> Iterator[Path]:
    """The file itself, or those of a folder but for what Python compiled."""
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def sha256_of(path: Path) -> str:
    """The digest of a file; a file that did not change is read once."""
    about = path.stat()
    return _sha256(path.absolute(), about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, _size: int, _changed: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 18):
            digest.update(piece)
    return digest.hexdigest()


def sha256_of_all(place: Path, suffix: str = "") -> str:
    """One digest of a file, or of all files in a folder with their names."""
    if place.is_file():
        return sha256_of(place)
    lines = [
        f"{path.relative_to(place)} {sha256_of(path)}\n"
        for path in files_in(place)
        if path.name.endswith(suffix)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class FileDigests:
    """The sha256 of files that a run reads, made on a thread beside it: weights may be large."""

    def __init__(self, places: Iterable[Path], *, without: Path | None = None) -> None:
        """`without` is the run's own folder, in case that it lies in one of the places."""
        self._without = without
        self._found: dict[str, str] = {}
        self._places = list(places)
        self._thread = threading.Thread(target=self._read, name="hocket-digests", daemon=True)
        if self._places:
            self._thread.start()

    def _read(self) -> None:
        for place in self._places:
            for path, _ in zip(files_in(place), range(_MOST_FILES), strict=False):
                if self._without is not None and self._without in path.absolute().parents:
                    continue
                name = path.relative_to(place.parent).as_posix()
                try:
                    # Two places may have files of one name.
                    self._found[path.as_posix() if name in self._found else name] = sha256_of(path)
                except OSError:
                    continue

    def finish(self) -> dict[str, str]:
        """The digests by the files' names, once all are made."""
        if self._places:
            self._thread.join()
        return dict(self._found)
