"""The server of the page: files and videos over HTTP, what changes over a WebSocket.

    /TOKEN/                          the page of the run, or the list of runs
    /TOKEN/run/NAME                  the page of one of several runs
    /TOKEN/film/NAME/CELL/ATTEMPT/CAMERA.mp4     a video, by ranges, also while it grows
    /TOKEN/live[/NAME]               the WebSocket: a snapshot, then changes; pictures as bytes

A run is read once however many pages look at it, and each page has a task of its own that sends:
one that is slow holds up nobody, and gets a new snapshot when it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hocket.errors import HocketError, RunFolderError
from hocket.results.page.document import as_json
from hocket.results.showing.live import WANTED_S, picture_file, want
from hocket.system.exposure import STRANGERS
from hocket.watch import files
from hocket.watch.folder_view import FolderView, is_run
from hocket.watch.guard import Admission, names_of
from hocket.watch.run_view import RunView

_KEPT_CHANGES = 20
"""Changes that a page may be behind before it gets a new snapshot."""
_LONGEST_MESSAGE = 16 << 10
_MOST_PAGES = 200
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What requests and messages that mean nothing lead to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Where to listen, and for whom."""

    token: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes any free port."""
    tls: ssl.SSLContext | None = None


@dataclass(slots=True, eq=False)
class _Channel:
    """A view that is polled for the pages that look at it."""

    view: RunView | FolderView
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A view's connection to its ledger is used by one thread at a time."""
    revision: int = 0
    snapshot: tuple[int, str] = (0, "")
    """The last one that was made, and its revision."""
    changes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_KEPT_CHANGES))
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    pages: int = 0
    looks: dict[int, tuple[frozenset[int], float]] = field(default_factory=dict)
    """The lanes that each page looks at, and until when."""
    pictures: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The newest picture of each lane, with when it was written."""
    error: str | None = None
    task: asyncio.Task[None] | None = None

    def missed(self, revision: int) -> list[str] | None:
        """The changes since a revision; None where a page that knows it needs a snapshot."""
        found = [text for number, text in self.changes if number > revision]
        return found if revision and len(found) == self.revision - revision else None

    async def whole(self) -> str:
        """A snapshot of the present revision."""
        async with self.lock:
            if self.snapshot[0] != self.revision:
                text = await asyncio.to_thread(lambda: _dumped(self.view.snapshot()))
                self.snapshot = (self.revision, text)
        return self.snapshot[1]

    @property
    def lanes(self) -> frozenset[int]:
        now = time.monotonic()
        wished = [lanes for lanes, until in self.looks.values() if until > now]
        return frozenset().union(*wished)


class WatchServer:
    """Serves the page of a run folder, or of a folder with runs, inside an `async with`."""

    def __init__(self, root: Path, watching: Watching, *, is_one_run: bool = False) -> None:
        """`is_one_run` says that the folder is a run's, also while nothing is in it yet."""
        self.root = root
        self._is_one_run = is_one_run
        self._watching = watching
        self._guard = Admission(
            token=watching.token,
            hosts=names_of(watching.host),
            scheme="http" if watching.tls is None else "https",
        )
        self._folder = FolderView(root)
        self._channels: dict[str, _Channel] = {}
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """The page's address, with its token."""
        assert self._server is not None
        guard, port = self._guard, next(iter(self._server.sockets)).getsockname()[1]
        host = next(iter(guard.hosts), self._watching.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{guard.scheme}://{shown}:{port}/{quote(guard.token)}/"

    async def __aenter__(self) -> WatchServer:
        self._server = await serve(
            self._serve,
            self._watching.host,
            self._watching.port,
            ssl=self._watching.tls,
            process_request=self._answer,
            compression=None,
            max_size=_LONGEST_MESSAGE,
            close_timeout=2.0,
            logger=STRANGERS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for channel in self._channels.values():
            async with channel.lock:  # no thread reads what is closed here
                if channel.task is not None:
                    channel.task.cancel()
                channel.view.close()

    # -- pages and videos ----------------------------------------------------------------------

    async def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        try:
            return await self._find(request)
        except _NONSENSE:  # as a number of 5,000 digits, or two hosts
            return files.text(HTTPStatus.BAD_REQUEST, "This means nothing.\n")

    async def _find(self, request: Request) -> Response | None:
        guard, headers = self._guard, request.headers
        host = headers.get("Host")
        if not guard.knows_host(host):
            return files.text(HTTPStatus.FORBIDDEN, "This name is none of this server's.\n")
        if not guard.knows_origin(headers.get("Origin"), host):
            return files.text(HTTPStatus.FORBIDDEN, "This origin is another's.\n")
        target = unquote(request.path.partition("?")[0])
        path = guard.path(target)
        if path is None:
            return files.text(HTTPStatus.NOT_FOUND, "There is nothing here without the token.\n")
        kind, _, rest = path[1:].partition("/")
        if kind == "live":
            if headers.get("Upgrade", "").lower() != "websocket":
                return files.text(HTTPStatus.UPGRADE_REQUIRED, "This is for WebSockets.\n")
            if sum(channel.pages for channel in self._channels.values()) < _MOST_PAGES:
                return None
            words = f"{_MOST_PAGES} pages are open already.\n"
            return files.text(HTTPStatus.SERVICE_UNAVAILABLE, words)
        if kind == "film":
            return await self._film(rest, headers.get("Range"), _growth(request.path))
        name = "page.html" if kind in ("", "run") else kind
        found = files.page_file(name, guard.token) if not rest or kind == "run" else None
        return found or files.text(HTTPStatus.NOT_FOUND, "There is no such page.\n")

    async def _film(self, rest: str, wanted: str | None, since: int | None) -> Response:
        """A range of a sealed video, or the bytes of a growing one from `since` on."""
        try:
            name, cell, attempt, camera = rest.rsplit("/", 3)
            view = self._channel(name).view
            if not isinstance(view, RunView):
                raise RunFolderError("There is no film of a list of runs.")
            async with self._channel(name).lock:
                path = view.film(int(cell), int(attempt), camera, grows=since is not None)
        except (ValueError, HocketError):
            return files.text(HTTPStatus.NOT_FOUND, "There is no such video.\n")
        if since is not None:
            return await asyncio.to_thread(files.growth, path, since)
        if path is None:
            return files.text(HTTPStatus.NOT_FOUND, "There is no such video.\n")
        return await asyncio.to_thread(files.video, path, wanted)

    # -- what changes --------------------------------------------------------------------------

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        path = unquote(connection.request.path.partition("?")[0])
        name = "/".join(path.split("/")[3:])
        try:
            channel = self._channel(name)
        except HocketError as exc:
            with contextlib.suppress(ConnectionClosed):
                await connection.send(json.dumps({"kind": "error", "text": str(exc)}))
            return
        channel.pages += 1
        sending = asyncio.create_task(self._send(connection, channel))
        try:
            async for message in connection:
                await self._hear(connection, channel, message)
        except ConnectionClosed:
            pass
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            channel.pages -= 1
            channel.looks.pop(id(connection), None)

    async def _send(self, connection: ServerConnection, channel: _Channel) -> None:
        known, drawn, error = 0, dict[int, int](), None
        with contextlib.suppress(ConnectionClosed):
            while True:
                if channel.error != error:
                    error = channel.error
                    await connection.send(_dumped({"kind": "error", "text": error or ""}))
                if channel.revision != known:
                    missed = channel.missed(known)
                    texts = [await channel.whole()] if missed is None else missed
                    known = channel.snapshot[0] if missed is None else channel.revision
                    for text in texts:
                        await connection.send(text)
                    continue
                lanes, _ = channel.looks.get(id(connection), (frozenset[int](), 0.0))
                for lane, (at, picture) in list(channel.pictures.items()):
                    if lane in lanes and drawn.get(lane) != at:
                        drawn[lane] = at
                        await connection.send(lane.to_bytes(4, "big") + picture)
                async with channel.news:
                    await channel.news.wait()

    async def _hear(
        self, connection: ServerConnection, channel: _Channel, message: str | bytes
    ) -> None:
        try:
            asked = json.loads(message)
            view = channel.view
            if "look" in asked:
                lanes = frozenset(int(lane) for lane in asked["look"][:16])
                channel.looks[id(connection)] = (lanes, time.monotonic() + WANTED_S)
            elif "episode" in asked and isinstance(view, RunView):
                wanted = None if asked.get("attempt") is None else int(asked["attempt"])
                async with channel.lock:
                    found = await asyncio.to_thread(view.episode, int(asked["episode"]), wanted)
                await connection.send(json.dumps({"kind": "episode", **found}))
            elif "inside" in asked and isinstance(view, RunView):
                cell, attempt = int(asked["inside"]), int(asked["attempt"])
                async with channel.lock:
                    look = await asyncio.to_thread(view.inside, cell, attempt)
                told = {"kind": "inside", "key": f"{cell}-{attempt}", "look": look or None}
                await connection.send(as_json(told))
            elif "compare" in asked and isinstance(view, FolderView):
                a, b = (str(name) for name in asked["compare"])
                found = await asyncio.to_thread(view.compare, a, b)
                await connection.send(as_json(found))
            elif "against" in asked and isinstance(view, FolderView):
                pinned, some = str(asked["against"]), [str(name) for name in asked["runs"]]
                found = await asyncio.to_thread(view.against, pinned, some)
                await connection.send(as_json(found))
            elif "report" in asked and isinstance(view, RunView):
                # It reads the folder by itself, and may take seconds: others go on meanwhile.
                report = await asyncio.to_thread(view.report)
                await connection.send(as_json({"kind": "report", "report": report}))
            elif "label" in asked and isinstance(view, RunView):
                async with channel.lock:
                    view.label(int(asked["cell"]), str(asked["label"]))
                await self._poll(channel)
        except _NONSENSE:
            await connection.send(json.dumps({"kind": "refused", "text": "This means nothing."}))
        except HocketError as exc:
            await connection.send(json.dumps({"kind": "refused", "text": str(exc)}))

    # -- reading -------------------------------------------------------------------------------

    def _channel(self, name: str) -> _Channel:
        """The channel of a run, or with no name of the folder, which may be a run itself."""
        if name not in self._channels:
            if name:
                path = self._folder.names().get(name)
                if path is None:
                    raise RunFolderError(f"There is no run {name!r} in {self.root}.")
                channel = _Channel(RunView(path, name))
            elif self._is_one_run or is_run(self.root):
                channel = _Channel(RunView(self.root, self.root.name))
            else:
                channel = _Channel(self._folder)
            channel.task = asyncio.create_task(self._follow(channel))
            self._channels[name] = channel
        return self._channels[name]

    async def _follow(self, channel: _Channel) -> None:
        """Read a run again and again, while a page looks at it."""
        while True:
            if channel.pages or not channel.revision:
                await self._poll(channel)
            await asyncio.sleep(channel.view.poll_s)

    async def _poll(self, channel: _Channel) -> None:
        async with channel.lock:
            try:
                change = await asyncio.to_thread(channel.view.poll)
            except (HocketError, OSError) as exc:
                channel.error, change = str(exc), None
            else:
                channel.error = None
                if change is not None or not channel.revision:
                    channel.revision += 1
                    if change is None or change.get("again"):
                        channel.changes.clear()
                    else:
                        channel.changes.append((channel.revision, _dumped(change)))
        if isinstance(channel.view, RunView) and channel.pages:
            await asyncio.to_thread(_exchange_pictures, channel.view, channel)
        async with channel.news:
            channel.news.notify_all()


def _exchange_pictures(view: RunView, channel: _Channel) -> None:
    """Ask the run for the pictures that pages look at, and read those that have come."""
    folder, lanes = view.folder, channel.lanes
    if not view.is_alive:
        channel.pictures.clear()
        return
    with contextlib.suppress(OSError, HocketError):
        want(folder, lanes)
    for lane in lanes:
        path = picture_file(folder, lane)
        with contextlib.suppress(OSError):
            at = path.stat().st_mtime_ns
            if channel.pictures.get(lane, (0, b""))[0] != at:
                channel.pictures[lane] = (at, path.read_bytes())


def _growth(target: str) -> int | None:
    """The byte since which a growing video is asked for; None where it is asked for by ranges."""
    asked = parse_qs(target.partition("?")[2]).get("from", [""])[0]
    return int(asked) if asked.isascii() and asked.isdigit() else None


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
