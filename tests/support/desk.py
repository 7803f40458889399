"""A driver without sockets, and sites that are played by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hocket
from hocket.core.data import Ref, Trial
from hocket.core.events import Event
from hocket.machines import protocol
from hocket.machines.deliveries import packed_rows
from hocket.machines.driver import OUTLIVES, Driver
from hocket.machines.leasing.entries import LeaseId
from hocket.records.chunks import ChunkRow
from hocket.records.file_rows import ROOM
from hocket.records.ledger.ledger import Ledger
from hocket.records.step_rows import StepRows
from hocket.runs.elsewhere import Keeping, Work
from hocket.runs.sites import SiteConfig
from support.sites import toys

PROGRAM: dict[str, Any] = {
    "versions": {"numpy": "1"},
    "code": {"hocket": {"sha256": "1"}},
    "files": {},
    "hardware": {"cpu": "one"},
}
FILE = "states.npz"


class Desk:
    """A driver at work on a few trials, what it has posted, and sites that are played by hand."""

    def __init__(
        self,
        folder: Path,
        count: int = 2,
        *,
        again: bool = False,
        retries: int = 2,
        room: int = ROOM,
        **config: Any,
    ) -> None:
        """`room` is for the bytes of steps."""
        self.trials = [Trial("toy:count", "count", seed) for seed in range(count)]
        self.ledger = Ledger.open(folder) if again else Ledger.create(folder, self.trials, {})
        self.ledger.keep(OUTLIVES, again)
        self.ledger.attach(StepRows(folder, room))
        self.folder = folder
        self.posts: list[tuple[str, protocol.Message]] = []
        self.events: list[Event] = []
        self.learnt: list[tuple[str, Any]] = []
        self.on_post: Callable[[protocol.Message], None] = lambda _: None
        done = self.ledger.episodes()
        ended = {episode.trial for episode in done}
        self.work = Work(
            config=toys(retries=retries),
            folder=self.ledger.folder,
            keeping=Keeping.of(self.ledger),
            planned=self.trials,
            remaining=[trial for trial in self.trials if trial not in ended],
            done=done,
            readers=(self.ledger, self),
            sinks=(Ref(name="steps"), Ref(name="states")),
            record=lambda *_: {},
            begin=lambda _: None,
            learn=lambda level, about: self.learnt.append((level, about)),
        )
        self.driver = Driver(self.work, SiteConfig(lease_s=10.0, **config), self._post)
        self.driver.start(0.0)

    def on(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None: ...

    def _post(self, site: str, message: protocol.Message) -> None:
        self.on_post(message)
        self.posts.append((site, message))

    def take(self, kind: type[Any], site: str | None = None) -> list[Any]:
        """What was posted of a kind since the last time."""
        found = [m for s, m in self.posts if isinstance(m, kind) and site in (None, s)]
        self.posts = [(s, m) for s, m in self.posts if m not in found]
        return found

    def hello(
        self, site: str, version: str = hocket.__version__, number: int = protocol.PROTOCOL
    ) -> None:
        self.driver.open(protocol.SiteHello(number, version, site, f"name of {site}"))

    def join(self, site: str, lanes: int = 1, now: float = 0.0, **fields: Any) -> None:
        self.hello(site)
        self.say_joined(site, lanes, now, **fields)

    def say_joined(self, site: str, lanes: int = 1, now: float = 0.0, **fields: Any) -> None:
        values: dict[str, Any] = {"depends_on": PROGRAM, "holds": []}
        message = protocol.Joined(lanes=lanes, cores=1, level="bitwise", **{**values, **fields})
        self.driver.hear(site, message, now)
        self.driver.turn(now)

    def leases(self, site: str) -> list[LeaseId]:
        return [
            LeaseId(*grant[:2])
            for message in self.take(protocol.Leased, site)
            for grant in message[0]
        ]

    def pieces(self, site: str, lease: LeaseId, data: bytes = b"data", name: str = FILE) -> None:
        digest = protocol.HASHER(data).digest()
        self.driver.hear(site, protocol.FilePiece(*lease, name, 0, data, digest), 0.0)

    def seal(self, site: str, lease: LeaseId, now: float = 0.0, *, files: Any = ()) -> None:
        rows = packed_rows([ChunkRow(0, 0, batch=1, requested=0.5, source="policy")])
        message = protocol.SealedEpisode(
            *lease, "success", 5, 1.0, True, False, 1, 0.5, list(files), *rows
        )
        self.driver.hear(site, message, now)
        self.driver.turn(now)

    def settled(self, site: str) -> list[LeaseId]:
        """Leases that the site may forget, once all that was accepted is durable."""
        self.ledger.flush()
        self.driver.turn(0.0)
        return [
            LeaseId(*one) for message in self.take(protocol.Settled, site) for one in message[0]
        ]
