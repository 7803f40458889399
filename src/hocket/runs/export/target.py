"""The file or folder that an export writes: it is new, and there whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from hocket.errors import UsageError
from hocket.records.folder import publish, sync_folder, temporary


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists: an export never writes over anything."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{str(path)!r} exists already. Give another --out, or remove it first.")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft to write to. It gets its name when all went well, and is deleted otherwise."""
    with _draft(path) as draft:
        yield draft
        publish(draft, path)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft as `new_file` gives it, for a folder."""
    with _draft(path) as draft:
        draft.mkdir()
        yield draft
        # Renaming a folder replaces an empty one without a word.
        refuse_existing(path)
        draft.rename(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A folder for what is needed only while the export goes on."""
    with _draft(beside.with_name(f"{beside.name}.scratch")) as folder:
        folder.mkdir()
        yield folder


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[Path]:
    refuse_existing(path)
    draft = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(draft)  # left by an export that was killed
        yield draft
    except OSError as exc:
        raise UsageError(f"The export to {str(path)!r} failed: {exc}.") from exc
    finally:
        with contextlib.suppress(OSError):
            _remove(draft)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
