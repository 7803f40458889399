"""The rooms: parts of hocket that can be taken out by deleting their folders.

Each is found by name when it is asked for, and no part that stays imports one. What needs a room
that is gone is refused in words.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping

from hocket.errors import MissingRoomError

ROOMS: Mapping[str, str] = {
    "train": "Training (hocket train, and the policies that it makes)",
    "machines": "Running on several machines (hocket work, --machines)",
    "watch": "Watching a run (hocket watch, --watch)",
    "serve": "Serving a policy (hocket serve, and sidecar policies)",
    "exports": "Exporting a run (hocket export, hocket collect)",
    "telemetry": "Telling others of a run (--reader otlp, wandb, trackio, mlflow, tensorboard)",
    "cloud": "Running on rented machines (--runtime modal, --runtime daytona)",
}
"""What each room is for, by its folder."""


def is_here(room: str) -> bool:
    """True if a room is part of this installation."""
    return importlib.util.find_spec(f"{__package__}.{room}") is not None


def require(room: str) -> None:
    """Raise MissingRoomError unless the room is part of this installation."""
    if not is_here(room):
        raise missing(room)


def missing(room: str) -> MissingRoomError:
    """The error that says which room is gone, and what to do."""
    folder = f"{__package__}.{room}".replace(".", "/")
    return MissingRoomError(
        f"{ROOMS[room]} is not part of this installation, which has no folder {folder}. Install "
        f"hocket whole: pip install --force-reinstall hocket"
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn the import error of a room that is gone into words."""
    try:
        yield
    except ModuleNotFoundError as exc:
        room = (exc.name or "").removeprefix(f"{__package__}.")
        if room not in ROOMS or is_here(room):
            raise
        raise missing(room) from exc
