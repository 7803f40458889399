"""What a run comes to know about itself, and the readers that keep it while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.data import Exactness
from hocket.core.events import Event, RowsChecked, SpecLearned, StartsCompared
from hocket.records.ledger.ledger import Ledger
from hocket.records.run_file import load_about, save_run
from hocket.results.exactness import KEY, Claim, kept_claim
from hocket.runs.config import EvalConfig


def about_policy(config: EvalConfig, policy: Policy) -> dict[str, Any]:
    """Where a policy came from, and how its chunks are used."""
    spec = policy.spec
    chunks = {
        "length": spec.chunk_length,
        "replan": config.replan or spec.replan or spec.chunk_length,
        "ensemble": config.ensemble,
        "delay": config.delay,
        "history": spec.history,
        "policy_control_rate": spec.control_rate,
    }
    return {**({"policy": dict(spec.origin)} if spec.origin else {}), "chunks": chunks}


class ExactnessReader:
    """A reader that adds up the checks of what `the same trial` means, and keeps the claim in the
    ledger, where a difference stays whatever becomes of the run."""

    hears = (RowsChecked, StartsCompared)

    def __init__(self, ledger: Ledger | None, level: Exactness) -> None:
        self._ledger = ledger
        self.claim = Claim(level=level)
        if ledger is not None:
            meta = ledger.meta()
            if KEY in meta or ledger.episodes():
                self.claim = kept_claim(meta, load_about(ledger.folder.root)).joined(level)
            ledger.keep(KEY, self.claim.to_plain())

    def lower(self, level: Exactness) -> None:
        """Claim no more than this level from now on."""
        self._put(self.claim.joined(level))

    def on(self, event: Event) -> None:
        if isinstance(event, RowsChecked):
            self._put(replace(self.claim, checks=self.claim.checks + event.checks))
        elif isinstance(event, StartsCompared) and event.differs:
            joined = tuple(dict.fromkeys([*self.claim.unseeded, event.suite]))
            self._put(replace(self.claim, unseeded=joined))

    def _put(self, claim: Claim) -> None:
        self.claim = claim
        if self._ledger is not None:
            self._ledger.keep(KEY, claim.to_plain())

    def close(self) -> None: ...


class AboutReader:
    """A reader that keeps in the run's own file what is known about it, and adds what envs tell:
    their facts, and how a batched simulator keeps rows from moving."""

    hears = (SpecLearned,)

    def __init__(self, folder: Path, config: EvalConfig, about: Mapping[str, Any]) -> None:
        self._folder = folder
        self._config = config
        self.known: dict[str, Any] = dict(about)
        self._save()

    def on(self, event: Event) -> None:
        if not isinstance(event, SpecLearned):
            return
        spec = event.spec
        if "batched" in spec.abilities:
            way = "mask" if "masked" in spec.abilities else "snapshot"
            self.add("suspension", {event.suite: way})
        digests = {k: v for k, v in spec.facts.items() if k.endswith("_sha256")}
        shared = {k: v for k, v in spec.facts.items() if k not in digests}
        if shared:
            self.add("envs", {event.suite: shared})
        if digests:
            self.add("tasks", {f"{event.suite}/{spec.task.name}": digests})

    def add(self, key: str, facts: Mapping[str, Any]) -> None:
        """Say more about the run; what is known already changes nothing."""
        known = self.known.get(key, {})
        if any(known.get(name) != value for name, value in facts.items()):
            self.known[key] = {**known, **facts}
            self._save()

    def put(self, facts: Mapping[str, Any]) -> None:
        """Say this about the run, in place of what was said."""
        self.known.update(facts)
        self._save()

    def _save(self) -> None:
        save_run(self._folder, self._config.to_plain(), about=self.known)

    def close(self) -> None: ...
