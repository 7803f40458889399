"""Fleets that outlive the run that they were started for."""

from __future__ import annotations

from collections.abc import Callable

from hocket.core.contracts.runtime import Runtime, WorkerSpec
from hocket.workers.fleet import Fleet, FleetConfig


class Fleets:
    """Lends a fleet to one run at a time, and keeps it for the next that needs the same workers.

    Starting workers and building their envs can take minutes where a run takes seconds. A run that
    needs others, or a fleet that was left in the middle of episodes, gets new ones.
    """

    def __init__(self) -> None:
        self._kept: tuple[WorkerSpec, FleetConfig, object, Fleet] | None = None

    def __enter__(self) -> Fleets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lend(
        self,
        build_runtime: Callable[[], Runtime],
        spec: WorkerSpec,
        config: FleetConfig,
        where: object = None,
    ) -> Fleet:
        """A fleet of such workers: the last one, if it can be. `where` is what the runtime was
        chosen by: workers elsewhere are others."""
        if self._kept is not None:
            *kept, fleet = self._kept
            if kept == [spec, config, where] and fleet.is_idle:
                return fleet
        self.close()
        fleet = Fleet(build_runtime(), spec, config)
        self._kept = (spec, config, where, fleet)
        return fleet

    @property
    def lent(self) -> Fleet | None:
        """The fleet that was lent last and is kept."""
        return None if self._kept is None else self._kept[-1]

    def close(self) -> None:
        if self._kept is not None:
            self._kept[-1].close()
            self._kept = None
