"""What a run comes to know about itself, and the readers that keep it while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.core.contracts.policy import Policy
from hocket.core.contracts.recorder import Reader, hearers
from hocket.core.data import Exactness
from hocket.core.events import Event, RowsChecked, SpecLearned, StartsCompared
from hocket.core.specs import EnvSpec
from hocket.records.digests import FileDigests
from hocket.records.ledger.ledger import Ledger
from hocket.records.program import changes, hold, unlike
from hocket.records.provenance import code_digests, hardware, places_of, provenance
from hocket.records.run_file import load_about, save_run
from hocket.results.exactness import KEY, Claim, kept_claim
from hocket.results.run_protocol import KEY as PROTOCOL
from hocket.runs.config import EvalConfig
from hocket.runs.protocols import protocol_of, with_gaps

_KEPT = ("versions", "code", "files", "policy", "hardware", "changed")
"""What is kept of each leg."""
_DRIVER = "gl_version"
"""What envs tell that is a driver's, and noted alone."""


def tell(readers: Iterable[Reader], event: Event) -> None:
    """Tell readers what happened outside of an engine."""
    for reader in hearers(readers, type(event)):
        reader.on(event)


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
    kind = f"{type(policy).__module__}:{type(policy).__qualname__}"
    return {"policy": {"class": kind, **spec.origin}, "chunks": chunks}


class ExactnessReader:
    """A reader that adds up the checks of what `the same trial` means, and keeps the claim in the
    ledger, where a difference stays whatever becomes of the run."""

    hears = (RowsChecked, StartsCompared)

    def __init__(self, ledger: Ledger | None, level: Exactness) -> None:
        self._ledger = ledger
        self.claim = Claim(level=level)
        if ledger is not None:
            if KEY in ledger.meta() or ledger.episodes():
                self.claim = kept_claim(ledger, load_about(ledger.folder.root)).joined(level)
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
        self._protocol = protocol_of(config)
        if self._protocol is not None:
            self.known[PROTOCOL] = self._protocol.begun(config, load_about(folder))
        self._save()

    def on(self, event: Event) -> None:
        if not isinstance(event, SpecLearned):
            return
        spec = event.spec
        if self._protocol is not None:
            limit = self._config.max_steps
            gaps = self._protocol.gaps(event.suite, spec.task, limit, spec.facts)
            self.add(PROTOCOL, with_gaps(self.known[PROTOCOL], gaps))
        if "batched" in spec.abilities:
            known = {"masked": "mask", "together": "together"}
            way = next((known[one] for one in known if one in spec.abilities), "snapshot")
            self.add("suspension", {event.suite: way})
        digests = {k: v for k, v in spec.facts.items() if k.endswith("_sha256")}
        shared = {k: v for k, v in spec.facts.items() if k not in digests}
        if shared:
            self.add("envs", {event.suite: shared})
        if told := {**digests, **spec.task.scoring}:
            self.add("tasks", {f"{event.suite}/{spec.task.name}": told})

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


class LegReader:
    """A reader that holds this process to the programs whose episodes count in the run. Another one
    is refused before an episode of it counts, or allowed and kept with the leg."""

    hears = (SpecLearned,)

    def __init__(self, ledger: Ledger, config: EvalConfig, *, allows_changes: bool) -> None:
        """Compare packages and code, before anything is loaded."""
        self._ledger = ledger
        self._config = config
        self._allows = allows_changes
        legs = ledger.legs()
        self._earlier = [leg.provenance for leg in legs if leg.provenance]
        self._specs = ledger.specs() if legs else {}
        self._places: Sequence[Path] = ()
        self._files = FileDigests(())
        self.known: dict[str, Any] = provenance(config)
        self._hold(unlike(self._earlier, {k: self.known[k] for k in ("versions", "code")}))

    def read_files(self, policy: Policy) -> None:
        """Begin to read the files that the policy and the configuration name."""
        self._places = places_of(self._config, getattr(policy, "files", ()))
        self._files = FileDigests(self._places, without=self._ledger.folder.root)

    def begin(self, policy: Policy) -> None:
        """Wait until the files are read, and keep what the leg depends on: now its episodes may
        count."""
        self.known |= {**about_policy(self._config, policy), "files": self._files.finish()}
        self.known["hardware"] = hardware()
        self._hold(unlike(self._earlier, self.known))
        self._keep(())

    def on(self, event: Event) -> None:
        """Compare what the env of a task tells of itself, before its first episode."""
        if not isinstance(event, SpecLearned):
            return
        task = (event.suite, event.spec.task.name)
        if task in self._specs:
            before, now = (_told("/".join(task), spec) for spec in (self._specs[task], event.spec))
            known = {text for leg in self._earlier for text in leg.get("changed", ())}
            found = [text for text in changes(before, now) if text not in known]
            self._hold(found)
            self._keep(found)

    def end(self) -> list[str]:
        """Keep and return what was edited while the leg went on: a worker that was started again
        has run it."""
        files = FileDigests(self._places, without=self._ledger.folder.root)
        code = {name: {"sha256": digest} for name, digest in code_digests(self._config).items()}
        found = changes(self.known, {"code": code, "files": files.finish()})
        self._keep(found)
        return found

    def _hold(self, found: Sequence[str]) -> None:
        advice = f"go on with `hocket resume {self._ledger.folder.root} --allow-changes`"
        hold(found, advice, allows=self._allows)

    def _keep(self, found: Sequence[str]) -> None:
        """Keep what the leg depends on, with what was found to change meanwhile."""
        self.known["changed"] = [*self.known.get("changed", ()), *found]
        kept = {key: self.known[key] for key in _KEPT}
        self._ledger.describe_leg(self._ledger.leg, kept)

    def close(self) -> None: ...


def _told(task: str, spec: EnvSpec) -> dict[str, dict[str, Any]]:
    """What an env says of its task and of itself, as a part of what is compared."""
    info = spec.task
    rules = {"control_rate": info.control_rate, "success_rule": info.success_rule}
    told = {**rules, **spec.facts}
    return {"versions": {f"{task}'s {name}": told[name] for name in told if name != _DRIVER}}
