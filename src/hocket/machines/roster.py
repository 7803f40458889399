"""The sites of a run: who they are, whether they are alike, and what they have done."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import hocket
from hocket.core.data import Exactness
from hocket.core.events import SiteState, WorkDone
from hocket.errors import WireError
from hocket.machines import protocol
from hocket.records.program import Known, changes, unlike
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
    lanes: int = 0
    """Its lanes; 0 while it takes no part."""
    size: int = 0
    """Its lanes when it joined."""
    cores: int = 0
    first_lane: int = 0
    """The number of its first lane among those of all sites."""
    leg: int | None = None
    """The number of its leg in the ledger; None where nothing is kept."""
    uneven: Sequence[str] = ()
    """In what it differs from the first site that joined."""
    depends_on: Known = field(default_factory=dict)
    has_joined: bool = False
    """True when it has said what it holds, on the connection that it has now."""
    shift: float | None = None
    """Seconds that its clock lags behind the driver's; None before its first sign of life."""
    episodes: int = 0
    done: WorkDone = field(default_factory=WorkDone)
    doing: str = "loading its policy and counting its lanes"
    error: str = ""
    """Of the last attempt that failed there."""
    refusal: str = ""
    """Why it may take no part any more."""

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
        self._entries: dict[str, Entry] = {}
        self._first: Entry | None = None
        """The first site that joined, with which others are compared."""
        self._programs = list(work.keeping.programs)
        """What the episodes in the folder and the sites that joined depend on."""
        self._lanes = self._numbered = 0
        self._facts: dict[str, tuple[str, Mapping[str, str]]] = {
            "/".join(task): ("the run folder", spec.facts)
            for task, spec in work.keeping.specs.items()
        }
        """By task: the site where an env of it was described first, and the description."""
        self._uneven: set[str] = set()
        self._level: Exactness = "bitwise"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, site: str) -> Entry | None:
        return self._entries.get(site)

    def leg(self, site: str) -> int | None:
        """The number of a site's leg in the ledger."""
        return self._entries[site].leg if site in self._entries else None

    @property
    def is_expecting(self) -> bool:
        """True when a site is connected that has not joined yet."""
        return any(not entry.size and not entry.refusal for entry in self._entries.values())

    def forget(self, site: str) -> None:
        """Forget a site that is gone and never joined: whoever asks may come by any name."""
        entry = self._entries.get(site)
        if entry is not None and not entry.size:
            del self._entries[site]

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
        if entry is not None and entry.refusal:
            return protocol.Refused(entry.refusal)
        if entry is None:
            entry = self._entries[hello.site] = Entry(hello.name, self._numbered)
            self._numbered += 1
        return self.welcome(entry, lease_s)

    def welcome(self, entry: Entry, lease_s: float) -> protocol.Welcome:
        """What a site is told that is to join, for the first time or again."""
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
            beat_s=min(_BEAT_S, lease_s / _BEATS),
        )

    def admit(self, entry: Entry, joined: protocol.Joined, *, mixed: bool) -> list[str]:
        """Take in a site that is ready; where it does not run what the run does, and they are not
        `mixed`, the differences."""
        found = unlike(self._programs, joined.depends_on)
        if found and not mixed:
            return found
        first = self._first or replace(entry, depends_on=joined.depends_on)
        uneven = [
            *changes(first.depends_on, joined.depends_on),
            *changes(first.depends_on, joined.depends_on, hardware=True),
        ]
        entry.cores, entry.doing, entry.has_joined = joined.cores, "", True
        if not entry.size:
            entry.first_lane, self._lanes = self._lanes, self._lanes + joined.lanes
            entry.leg = self._work.keeping.begin_leg(entry.name)
            entry.depends_on = joined.depends_on
            if entry.depends_on not in self._programs:
                self._programs.append(entry.depends_on)
            self._work.keeping.describe_leg(entry.leg, entry.depends_on)
        entry.lanes = entry.size = joined.lanes
        entry.uneven = uneven
        self._first = self._first or entry
        self._level = max(self._level, joined.level, key=_LEVELS.index)
        return []

    def compare(
        self, entry: Entry, task: str, facts: Mapping[str, str], *, mixed: bool
    ) -> list[str]:
        """Compare what an env of a task says of itself at a site with what it said elsewhere, and
        tell the run of new differences. Those in a digest, as of its model, are returned where
        sites are not `mixed`: it is another env. A renderer is hardware."""
        first, known = self._facts.setdefault(task, (entry.name, facts))
        keys = [key for key in sorted({*known, *facts}) if facts.get(key) != known.get(key)]
        found = {
            key: f"{key}: {facts.get(key)} at {entry.name}, {known.get(key)} at {first}"
            for key in keys
        }
        others = [f"{task}'s {found[key]}" for key in keys if key.endswith("_sha256")]
        if others and not mixed:
            return others
        if not self._uneven.issuperset(found.values()):
            self._uneven.update(found.values())
            self._work.learn(*self.account())
        if others:
            entry.depends_on = {**entry.depends_on, "changed": others}
            self._work.keeping.describe_leg(entry.leg, entry.depends_on)
        return []

    def account(self) -> tuple[Exactness, dict[str, Any]]:
        """How exact the run can be with these sites, and what stands of them in `about`."""
        assert self._first is not None
        joined = [entry for entry in self._entries.values() if entry.size]
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
