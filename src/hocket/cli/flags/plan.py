"""What the command line of a verb that makes runs asks for, as one value: the verb makes it and
nothing else, and `--dry-run` prints it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal

from tyro.conf import arg

from hocket import rooms
from hocket.cli.flags.values import Readers
from hocket.core import plugins
from hocket.core.contracts.recorder import Followed
from hocket.errors import UsageError
from hocket.runs.sites import MachinesConfig, SiteConfig
from hocket.runs.subject import SubjectT

if TYPE_CHECKING:
    from hocket.core.contracts.recorder import Reader
    from hocket.machines.machines import Machines


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Where the trials of a run are run, and who follows it: for every verb that makes runs."""

    machines: Annotated[str | None, arg(metavar="WHERE")] = None
    """Run on several machines, an engine on each, one plan and one ledger here. local:N (N
    processes, to try it), listen[:HOST:PORT] (whoever runs `hocket work`), ssh:HOST,HOST, ray or
    ray://HOST:PORT. Results do not depend on it."""
    sites: Annotated[int | Literal["auto"], arg(metavar="N|auto")] = "auto"
    """With --machines ray: how many sites; auto is as many as the cluster has room for, and more as
    it grows."""
    site: SiteConfig = field(default_factory=SiteConfig)
    """What each site is."""
    reader: Readers = ()
    """Let others follow the run; give it again, or commas, for several. otlp or
    otlp=http://HOST:4318 sends spans and metrics to an OpenTelemetry collector; wandb, trackio,
    mlflow (each =PROJECT) and tensorboard log curves, rates with n and interval, films of failures
    and the card; or your own, as my_readers.py:Mine=ARG."""
    watch: bool = False
    """Show the run in the browser while it goes on (see hocket watch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Generic[SubjectT]):
    """Runs, who reads them, and what is put out."""

    runs: Mapping[str, SubjectT]
    """By name; a run that is alone may have none, and then lies in `out` itself."""
    base: str | None = None
    """The run that the others are compared with."""
    out: Path | None = None
    """The folder; None is one named after time, env and policy."""
    is_resumed: bool = False
    """True where the run goes on in its folder."""
    allows_changes: bool = False
    """True where it may go on as another program."""
    readers: tuple[str, ...] = ()
    machines: MachinesConfig | None = None
    """None where the run is here."""
    is_watched: bool = False
    is_json: bool = False
    is_dry: bool = False

    @classmethod
    def of(cls, flags: RunFlags, runs: Mapping[str, SubjectT], **own: Any) -> RunPlan[SubjectT]:
        """The plan of these runs by a verb's flags; `own` are fields that only some verbs have."""
        return cls(
            runs=runs,
            readers=_readers_of(flags.reader),
            machines=_machines_of(flags),
            is_watched=flags.watch,
            **own,
        )

    def __post_init__(self) -> None:
        if self.machines is not None:
            rooms.require("machines")
        if self.is_watched:
            rooms.require("watch")

    @property
    def is_one(self) -> bool:
        """True where it is one run, alone."""
        return list(self.runs) == [""]

    def describe(self) -> list[str]:
        """The plan in lines; of a run's settings those that differ from their defaults."""
        lines = [f"{name or 'run'}: {_settings(config)}" for name, config in self.runs.items()]
        if self.base is not None:
            lines.append(f"compared with: {self.base}")
        if self.machines is not None:
            lines.append(f"machines: {_settings(self.machines)}")
        if self.readers:
            lines.append(f"readers: {', '.join(self.readers)}")
        if self.is_watched:
            lines.append("a page in the browser")
        folder = self.out or "runs/TIME-ENV-POLICY"
        state = "goes on where it stopped" if self.is_resumed else "not made"
        output = ["output: JSON"] if self.is_json else []
        return [*lines, f"folder: {folder} ({state})", *output]


def _settings(config: Any, head: str = "") -> str:
    """The fields that differ from their defaults, those of a field's own fields by both names."""
    found = []
    for one in fields(config):
        factory = one.default_factory
        default = one.default if factory is MISSING else factory()
        value = getattr(config, one.name)
        if is_dataclass(value):
            found.append(_settings(value, f"{head}{one.name}."))
        elif value != default:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            found.append(f"{head}{one.name}={shown}")
    return " ".join(filter(None, found))


def _readers_of(named: tuple[str, ...]) -> tuple[str, ...]:
    """The named readers, each of which is there and has what it needs."""
    if len(set(named)) < len(named):
        raise UsageError(f"A reader is named twice in --reader {','.join(named)}.")
    for one in named:
        name = one.partition("=")[0]
        plugins.load("readers", name)
        plugins.require_extra("readers", name)
    return named


def make_readers(named: Sequence[str], run: Followed) -> list[Reader]:
    """The named readers of a run."""
    made = []
    for one in named:
        name, _, argument = one.partition("=")
        made.append(plugins.load("readers", name)(argument, run))
    return made


@contextlib.contextmanager
def following(named: Sequence[str], run: Followed) -> Iterator[list[Reader]]:
    """The named readers of a run, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        made = make_readers(named, run)
        for reader in made:
            stack.callback(reader.close)
        yield made


def _machines_of(flags: RunFlags) -> MachinesConfig | None:
    if flags.machines is None:
        if flags.sites != "auto" or flags.site != SiteConfig():
            raise UsageError("--sites and --site.* belong to --machines: name the machines too.")
        return None
    return MachinesConfig(where=flags.machines, sites=flags.sites, site=flags.site)


@contextlib.contextmanager
def machines_of(config: MachinesConfig | None, *, more: bool = False) -> Iterator[Machines | None]:
    """The machines of a run; None where it is here. `more`: for several runs."""
    if config is None:
        yield None
        return
    from hocket.machines.machines import Machines

    with Machines(config, more=more) as machines:
        yield machines
