"""The flags that say which machines a run is on, for every verb that makes a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from hocket.errors import UsageError
from hocket.runs.sites import MachinesConfig, SiteConfig

if TYPE_CHECKING:
    from hocket.machines.machines import Machines


@dataclass(frozen=True, kw_only=True)
class MachineFlags:
    """Where the trials of a run are run."""

    machines: Annotated[str | None, arg(metavar="WHERE")] = None
    """Run on several machines, an engine on each, one plan and one ledger here. local:N (N
    processes, to try it), listen[:HOST:PORT] (whoever runs `hocket work`), ssh:HOST,HOST, ray or
    ray://HOST:PORT. Results do not depend on it."""
    sites: Annotated[int | Literal["auto"], arg(metavar="N|auto")] = "auto"
    """With --machines ray: how many sites; auto is as many as the cluster has room for, and more as
    it grows."""
    site: SiteConfig = field(default_factory=SiteConfig)
    """What each site is."""


def machines_asked(flags: MachineFlags) -> MachinesConfig | None:
    """The machines that the flags name; None where the run is here."""
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
