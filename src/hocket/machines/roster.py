"""The sites of a run: who they are, whether they are alike, and what they have done."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import hocket
from hocket.core.data import Exactness
from hocket.core.events import SiteState, WorkDone
from hocket.errors import WireError
from hocket.machines import protocol
from hocket.machines.identity import Identity, differences
from hocket.machines.receipts import INBOXES, PROOF
from hocket.runs.elsewhere import Keeping, Work

_LEVELS: tuple[Exactness, ...] = get_args(Exactness)
_KEY = "machines"
"""The key in the ledger's `meta` under which the run's name for sites is kept."""
_BEAT_S = 2.0
"""Most seconds between two signs of life, which also tell what a site has done."""
_BEATS = 6
"""A lease ends after this many signs of life have failed to come."""
_ID = re.compile(r"[0-9a-z]{1,64}")


@dataclass(slots=True)
class Entry:
    """What the driver knows of a site."""

    name: str
    number: int
    inbox: Path
    """Where it writes, if it sees the driver's disk."""
    proof: str
    lanes: int = 0
    """Its lanes; 0 while it takes no part."""
    size: int = 0
    """Its lanes when it joined."""
    cores: int = 0
    first_lane: int = 0
    """The number of its first lane among those of all sites."""
    is_shared: bool = False
    identity: Identity = field(default_factory=dict)
    uneven: Sequence[str] = ()
    """In what it differs from the first site that joined."""
    depends_on: Mapping[str, Any] = field(default_factory=dict)
    has_joined: bool = False
    """True when it has said what it holds, on the connection that it has now."""
    shift: float | None = None
    """Seconds that its clock lags behind the driver's; None before its first sign of life."""
    episodes: int = 0
    done: WorkDone = field(default_factory=WorkDone)
    doing: str = "loading its policy and counting its lanes"

    def hear(self, beat: protocol.Beat, now: float) -> None:
        late = now - beat.at
        # The least delay is the nearest to the truth.
        self.shift = late if self.shift is None else min(self.shift, late)
        self.done = WorkDone(*beat.done)  # type: ignore[arg-type]
        self.doing = beat.doing

    def go(self, why: str) -> None:
        """Note that the site takes no part now, and why."""
        self.lanes, self.doing = 0, why


class Roster:
    """All sites that have ever said hello, by their identifiers."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._run = _run_name(work.keeping)
        self._inboxes = work.folder.root / INBOXES
        self._entries: dict[str, Entry] = {}
        self._first: Entry | None = None
        """The first site that joined, with which others are compared."""
        self._lanes = 0
        self._facts: dict[str, tuple[str, Mapping[str, str]]] = {}
        """By task: the site where an env of it was described first, and the description."""
        self._uneven: set[str] = set()
        self._level: Exactness = "bitwise"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, site: str) -> Entry | None:
        return self._entries.get(site)

    def called(self, name: str) -> list[str]:
        """The identifiers of sites with this name."""
        return [site for site, entry in self._entries.items() if entry.name == name]

    def greet(
        self, hello: protocol.SiteHello, lease_s: float
    ) -> protocol.Welcome | protocol.Refused:
        """The answer to a site that has connected, for the first time or again."""
        if not _ID.fullmatch(hello.site):
            raise WireError("A site has an identifier that no site has.")
        if (hello.protocol, hello.version) != (protocol.PROTOCOL, hocket.__version__):
            return protocol.Refused(
                f"The driver runs hocket {hocket.__version__} (protocol {protocol.PROTOCOL}), this "
                f"site {hello.version} (protocol {hello.protocol}). Install the same at every site."
            )
        entry = self._entries.get(hello.site)
        if entry is None:
            # Named alike by every driver of the run: the site may have files there.
            inbox = self._inboxes / hello.site
            inbox.mkdir(parents=True, exist_ok=True)
            entry = Entry(hello.name, len(self._entries), inbox, secrets.token_hex(16))
            (inbox / PROOF).write_text(entry.proof)
            self._entries[hello.site] = entry
        entry.has_joined = False
        work = self._work
        return protocol.Welcome(
            run=self._run,
            kind=work.kind,
            start=work.start,
            config=work.config.to_plain(),
            sinks=[sink.to_plain() for sink in work.sinks],
            trial=work.remaining[0],
            episodes=work.at_once or len(work.remaining),
            inbox=str(entry.inbox),
            proof=entry.proof,
            beat_s=min(_BEAT_S, lease_s / _BEATS),
        )

    def admit(
        self, entry: Entry, joined: protocol.Joined, *, mixed: bool
    ) -> protocol.Refused | None:
        """Take in a site that is ready; the refusal where it does not run what others run."""
        if self._first is not None and not mixed:
            found = differences(self._first.identity, joined.identity, "code")
            if found:
                return protocol.Refused(
                    f"This site does not run what {self._first.name} runs: {'; '.join(found)}. "
                    f"Make them the same, or let them differ with --site.mixed."
                )
        if joined.level not in _LEVELS:
            raise WireError(f"There is no exactness {joined.level!r:.40}.")
        entry.lanes = entry.size = joined.lanes
        entry.cores, entry.doing, entry.has_joined = joined.cores, "", True
        entry.is_shared = joined.is_shared and _is_proven(entry)
        if not entry.identity:
            entry.first_lane, self._lanes = self._lanes, self._lanes + joined.lanes
        entry.identity, entry.depends_on = joined.identity, joined.depends_on
        self._first = self._first or entry
        entry.uneven = [
            found
            for part in ("code", "hardware")
            for found in differences(self._first.identity, entry.identity, part)
        ]
        level: Exactness = joined.level
        self._level = max(self._level, level, key=_LEVELS.index)
        return None

    def compare(self, entry: Entry, task: str, facts: Mapping[str, str]) -> bool:
        """Compare what an env of a task says of itself at a site (its renderer, the digest of its
        model) with what it said elsewhere; true where a new difference was found."""
        first, known = self._facts.setdefault(task, (entry.name, facts))
        before = len(self._uneven)
        for key in sorted({*known, *facts}):
            mine, theirs = facts.get(key), known.get(key)
            if mine != theirs:
                self._uneven.add(f"{key}: {mine} at {entry.name}, {theirs} at {first}")
        return len(self._uneven) > before

    def account(self) -> tuple[Exactness, dict[str, Any]]:
        """How exact the run can be with these sites, and what stands of them in `about`."""
        assert self._first is not None
        joined = [entry for entry in self._entries.values() if entry.identity]
        uneven = self._uneven.union(*(entry.uneven for entry in joined))
        about: dict[str, Any] = {
            **self._first.depends_on,
            "lanes": self._lanes,
            "sites": [
                {
                    "name": entry.name,
                    "lanes": entry.size,
                    "first_lane": entry.first_lane,
                    "cores": entry.cores,
                }
                for entry in joined
            ],
            "site": {part: dict(found) for part, found in self._first.identity.items()},
        }
        if uneven:
            about["differences"] = sorted(uneven)
        is_lowered = uneven and self._level == "bitwise"
        return ("inputs" if is_lowered else self._level), about

    def states(self, running: dict[str, int]) -> list[SiteState]:
        """The state of each site; `running`: site to the number of attempts under way."""
        return [
            SiteState(
                name=entry.name,
                lanes=entry.lanes,
                cores=entry.cores,
                running=running.get(site, 0),
                episodes=entry.episodes,
                doing=entry.doing,
            )
            for site, entry in self._entries.items()
        ]

    def done(self) -> WorkDone:
        """What all sites have done together."""
        columns = zip(*(entry.done for entry in self._entries.values()), strict=True)
        return WorkDone(*map(sum, columns))


def _run_name(keeping: Keeping) -> str:
    """The name of the run among sites, which may have known it under an earlier driver."""
    found = keeping.facts.get(_KEY)
    if found is None:
        found = secrets.token_hex(16)
        keeping.keep(_KEY, found)
    return str(found)


def _is_proven(entry: Entry) -> bool:
    """True when what the site wrote into its inbox can be read here: both see one disk."""
    try:
        return (entry.inbox / f"{PROOF}-seen").read_text() == entry.proof
    except OSError:
        return False
