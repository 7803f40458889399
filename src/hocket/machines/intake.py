"""How the episodes of sites come into a run: their files, their chunks, and the acknowledgement
that they are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hocket.core.data import Episode, Trial
from hocket.core.events import EpisodesEnded, EpisodesSealed, Event, Noted
from hocket.machines import protocol
from hocket.machines.leasing.entries import LeaseId
from hocket.machines.receipts import Receipts
from hocket.machines.roster import Entry
from hocket.machines.rows import SiteRows, episode_of
from hocket.runs.elsewhere import Work
from hocket.workers.links.files import declared_names

Post = Callable[[str, protocol.Message], None]
"""Sends a message to the site with an identifier."""


class Intake:
    """Takes episodes in. That their site may deliver them was decided before."""

    def __init__(self, work: Work, tell: Callable[[Event], None], post: Post) -> None:
        keeping = self._keeping = work.keeping
        self._tell = tell
        self._post = post
        self._rows: SiteRows | None = None
        if keeping.attach is not None:
            self._rows = SiteRows(leg=keeping.leg)
            keeping.attach(self._rows)
        self.files = Receipts(work.folder, declared_names(work.sinks), keeping.receivers)
        self._untold: list[tuple[str, LeaseId, Episode]] = []
        """Episodes that count, of which readers are told at the next turn, all at once."""
        self._accepted: deque[tuple[str, LeaseId]] = deque()
        self._acknowledged = 0
        self._remarked: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """True when no episode has been accepted."""
        return not (self._acknowledged or self._accepted or self._untold)

    def read(
        self, one: LeaseId, trial: Trial, site: Entry, message: protocol.SealedEpisode
    ) -> Episode:
        """The episode that a site has sealed; WireError where its files or chunks are none."""
        episode = episode_of(message, trial, self.files.finish(one, message.files))
        if self._rows is not None:
            shift = 0.0 if site.shift is None else site.shift
            self._rows.put(trial, message, lane=site.first_lane, site=site.number, shift=shift)
        site.episodes += 1
        return episode

    def accept(self, one: LeaseId, episode: Episode, site: str) -> None:
        """Let the episode count: it goes to the ledger at the next turn, and is acknowledged once
        it is durable."""
        self._untold.append((site, one, episode))

    def tell(self, now: float) -> None:
        """Give readers, the ledger first, what was accepted since the last time."""
        if not self._untold:
            return
        untold, self._untold = self._untold, []
        self._accepted += [(site, one) for site, one, _ in untold]
        episodes = [episode for _, _, episode in untold]
        found = dict.fromkeys(text for episode in episodes for text in episode.remarks)
        for text in [text for text in found if text not in self._remarked]:
            self._remarked.add(text)
            self._tell(Noted(text=text))
        self._tell(EpisodesEnded(time=now, lanes=[0] * len(episodes), episodes=episodes))
        self._tell(EpisodesSealed(time=now, episodes=episodes))

    def is_owed(self, one: LeaseId) -> bool:
        """True when an episode counts and is not known to be durable: it will be acknowledged."""
        return any(one == other for _, other, *_ in (*self._untold, *self._accepted))

    def acknowledge(self) -> None:
        """Tell sites which of their episodes have become durable since this was called last."""
        committed = self._keeping.committed()
        found: dict[str, list[LeaseId]] = {}
        while self._accepted and self._acknowledged < committed:
            site, one = self._accepted.popleft()
            self._acknowledged += 1
            if site:
                found.setdefault(site, []).append(one)
        for site, leases in found.items():
            self._post(site, protocol.Settled(leases))
