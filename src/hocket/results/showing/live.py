"""What a run tells of itself while it goes on: `live/status.json`, and pictures for who looks.

    live/status.json   lanes, batches, speed; written off the engine's thread, twice a second at
                       most, and every two seconds where nobody looks
    live/wanted        written by who looks: the lanes whose pictures are wanted, good for 5 s
    live/lane-N.jpg    what lane N showed the policy last, twice a second at most

All of it may be deleted at any time. A run never waits for who looks: the engine's thread puts
events into a queue and copies a picture now and then; a thread beside it does the rest, and drops
pictures that come faster than they are written.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hocket.core.data import Array, Observation, Trial
from hocket.core.events import (
    AttemptFailed,
    AttemptsBegan,
    BatchInferred,
    ChunksExecuted,
    EpisodesEnded,
    Event,
    LanesReady,
    Noted,
    RunStarted,
    StartsCompared,
    WorkerChanged,
)
from hocket.errors import HocketError
from hocket.results.exactness import unseeded_sentence
from hocket.results.showing.tally import Tally
from hocket.system.durable import drafted
from hocket.workers.sinks.pictures import as_frame, cameras_in, encode_jpeg

FOLDER, STATUS, WANTED = "live", "status.json", "wanted"
WANTED_S = 5.0
"""Seconds for which a wish for pictures is good."""
_EVERY_S = 0.5
_IDLE_S = 2.0
"""Seconds between two statuses where nobody looks: enough to tell that the run lives, and to notice
who begins to look."""
HEARTBEAT_S = 10.0
"""A status that is older than this, five idle rounds, is of a run that died."""
_HUNG_S = 3600.0
"""A process of this machine that said nothing for longer is another one of the same number."""
_MOST_LANES = 256
"""Lanes that a status tells of, the first ones. Where there are more they are rows of one
simulator, which step together."""
_MOST_PICTURES = 16
"""Lanes whose pictures can be wanted at once."""
_LAST_BATCHES = 200
_WIDTH = 240
"""Pixels across a picture."""


def status_file(folder: Path) -> Path:
    return folder / FOLDER / STATUS


def wanted_file(folder: Path) -> Path:
    return folder / FOLDER / WANTED


def picture_file(folder: Path, lane: int) -> Path:
    return folder / FOLDER / f"lane-{lane}.jpg"


def want(folder: Path, lanes: Collection[int]) -> None:
    """Ask a run for pictures of these lanes; to be said again within WANTED_S."""
    path = wanted_file(folder)
    path.parent.mkdir(exist_ok=True)
    with drafted(path, is_durable=False) as draft:
        draft.write_text(json.dumps(sorted(lanes)))


def read_status(folder: Path) -> dict[str, Any] | None:
    """What a run said of itself last; None where it said nothing, or nothing that can be read."""
    try:
        found = json.loads(status_file(folder).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_alive(status: Mapping[str, Any] | None, now: float) -> bool:
    """True if the run that wrote a status still goes on, at `now` of the wall's clock."""
    if status is None or status.get("ended"):
        return False
    silent_s = now - float(status.get("at", 0.0))
    if status.get("host") == socket.gethostname():
        # A process that only hangs is not dead.
        return silent_s < _HUNG_S and _exists(int(status.get("process", 0)))
    return silent_s < HEARTBEAT_S


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


class _Lane(NamedTuple):
    """What a lane does since when, and how far its attempt is."""

    state: str
    since: float
    trial: Trial | None = None
    attempt: int = 0
    chunk: int = -1
    borders: tuple[int, ...] = ()
    """Steps that had been executed at the end of each chunk."""


class _News(NamedTuple):
    """What an event says of lanes, without its arrays: those of many lanes would fill memory."""

    state: str
    time: float
    lanes: Sequence[int]
    trials: Sequence[Trial] = ()
    attempts: Sequence[int] = ()
    numbers: Sequence[int] = ()
    """Chunks where they were delivered, steps where they were executed."""


class LiveStatus:
    """A reader that keeps the `live` folder of a run up to date. Closing twice is safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._look: Callable[[int], Observation] | None = None
        self._tally = self._own = Tally()
        self._news: queue.SimpleQueue[_News | str] = queue.SimpleQueue()
        self._over = threading.Event()
        self._wanted: frozenset[int] = frozenset()
        self._taken_at: dict[int, float] = {}
        self._pictures: queue.SimpleQueue[tuple[int, dict[str, Array]]] = queue.SimpleQueue()
        self._began = time.time()
        # What follows belongs to the thread alone.
        self._lanes: dict[int, _Lane] = {}
        self._sizes: deque[int] = deque(maxlen=_LAST_BATCHES)
        self._notes: list[str] = []
        self._drawn: set[int] = set()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._work, name="hocket-live", daemon=True
        )
        self._thread.start()

    def follow(self, look: Callable[[int], Observation], tally: Tally | None = None) -> None:
        """Take pictures with `look`, which gives the last observation of a lane that has just
        executed a chunk; and figures from a `tally` that hears the same events, where there is one
        already."""
        self._look, self._tally = look, tally or self._own

    # -- on the engine's thread ----------------------------------------------------------------

    def on(self, event: Event) -> None:
        if self._tally is self._own:
            self._own.on(event)
        if isinstance(event, BatchInferred):
            self._news.put(_News("stepping", event.time, event.lanes, numbers=event.chunks))
        elif isinstance(event, ChunksExecuted):
            if self._wanted:
                self._take_pictures(event)
            self._news.put(_News("waiting", event.time, event.lanes, numbers=event.steps))
        elif isinstance(event, (AttemptsBegan, LanesReady)):
            state = "resetting" if isinstance(event, AttemptsBegan) else "waiting"
            news = _News(state, event.time, event.lanes, event.trials, event.attempts)
            self._news.put(news)
        elif isinstance(event, EpisodesEnded):
            self._news.put(_News("free", event.time, event.lanes))
        elif isinstance(event, AttemptFailed):
            self._news.put(_News("free", event.time, [event.lane]))
        elif isinstance(event, WorkerChanged) and event.state != "up":
            self._news.put(_News(event.state, event.time, event.lanes))
        elif isinstance(event, RunStarted):
            self._began = time.time()
            self._news.put(_News("starting", 0.0, range(event.lanes)))
        elif isinstance(event, Noted):
            self._news.put(event.text)
        elif isinstance(event, StartsCompared) and event.differs:
            self._news.put(unseeded_sentence([event.suite]))

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._over.set()
            thread.join(HEARTBEAT_S)

    def _take_pictures(self, event: ChunksExecuted) -> None:
        if self._look is None:
            return
        now = time.monotonic()
        for i, lane in enumerate(event.lanes):
            is_due = now - self._taken_at.get(lane, -1.0) >= _EVERY_S
            if lane not in self._wanted or not is_due or event.terminated[i] or event.truncated[i]:
                continue
            if self._pictures.qsize() >= _MOST_PICTURES:
                return
            self._taken_at[lane] = now
            with contextlib.suppress(HocketError):  # the lane's worker has just been lost
                seen = self._look(lane)
                found = {key: np.array(seen[key]) for key in cameras_in(seen)}
                if found:
                    self._pictures.put((lane, found))

    # -- on its own ----------------------------------------------------------------------------

    def _work(self) -> None:
        is_over = False
        while not is_over:
            # A thread that wakes more often than it must costs the run its caches.
            is_over = self._over.wait(_EVERY_S if self._wanted_now() else _IDLE_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._hear(self._news.get_nowait())
            try:
                self._wanted = self._read_wanted()
                self._draw_pictures()
                self._write(ended=is_over)
            except (OSError, HocketError):
                # A disk that is full is the ledger's to tell; a display only skips drawing.
                continue
        for lane in self._drawn:
            picture_file(self._folder, lane).unlink(missing_ok=True)

    def _hear(self, news: _News | str) -> None:
        if isinstance(news, str):
            if news not in self._notes:
                self._notes.append(news)
            return
        since = self._began + news.time
        if news.state == "stepping":
            self._sizes.append(len(news.lanes))
        for i, lane in enumerate(news.lanes):
            if lane >= _MOST_LANES:
                continue
            if news.trials:
                self._lanes[lane] = _Lane(news.state, since, news.trials[i], news.attempts[i])
                continue
            known = self._lanes.get(lane)
            if not news.numbers or known is None or known.trial is None:
                self._lanes[lane] = _Lane(news.state, since)
            elif news.state == "stepping":
                self._lanes[lane] = known._replace(
                    state=news.state, since=since, chunk=news.numbers[i]
                )
            else:
                border = news.numbers[i] + (known.borders[-1] if known.borders else 0)
                self._lanes[lane] = known._replace(
                    state=news.state, since=since, borders=(*known.borders, border)
                )

    def _wanted_now(self) -> bool:
        try:
            return time.time() - wanted_file(self._folder).stat().st_mtime < WANTED_S
        except OSError:
            return False

    def _read_wanted(self) -> frozenset[int]:
        if not self._wanted_now():
            return frozenset()
        try:
            asked = json.loads(wanted_file(self._folder).read_text())
            return frozenset(int(lane) for lane in asked[:_MOST_PICTURES])
        except (OSError, ValueError, TypeError):
            return frozenset()

    def _draw_pictures(self) -> None:
        newest: dict[int, dict[str, Array]] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                lane, found = self._pictures.get_nowait()
                newest[lane] = found
        for lane, found in newest.items():
            frames = [as_frame(key, array, 0) for key, array in found.items()]
            with drafted(picture_file(self._folder, lane), is_durable=False) as draft:
                draft.write_bytes(encode_jpeg(frames, _WIDTH))
            self._drawn.add(lane)

    def _write(self, *, ended: bool) -> None:
        path = status_file(self._folder)
        if not self._folder.is_dir():
            return
        path.parent.mkdir(exist_ok=True)
        with drafted(path, is_durable=False) as draft:
            draft.write_text(json.dumps(self._told(ended=ended)))

    def _told(self, *, ended: bool) -> dict[str, Any]:
        tally, speed = self._tally, self._tally.speed()
        return {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "at": time.time(),
            "began": self._began,
            "ended": ended,
            "phase": tally.phase,
            "planned": tally.planned,
            "done": tally.done,
            "left_s": tally.left_s if tally.planned else None,
            "filmed": list(tally.rendered),
            "lost_attempts": tally.failed_attempts,
            "lane_count": tally.lanes,
            "cores": tally.cores,
            "speed": None if speed is None else asdict(speed),
            "batch_sizes": list(self._sizes),
            "notes": self._notes,
            "lanes": [_plain(lane, known) for lane, known in sorted(self._lanes.items())],
        }


def _plain(lane: int, known: _Lane) -> dict[str, Any]:
    found: dict[str, Any] = {"lane": lane, "state": known.state, "since": known.since}
    if known.trial is not None:
        found |= {
            "trial": known.trial.id,
            "attempt": known.attempt,
            "chunk": known.chunk,
            "borders": list(known.borders),
        }
    return found
