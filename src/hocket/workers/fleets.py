"""Keeps a fleet warm from one run to the next."""

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
        self._kept: tuple[WorkerSpec, FleetConfig, Fleet] | None = None

    def __enter__(self) -> Fleets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lend(
        self, build_runtime: Callable[[], Runtime], spec: WorkerSpec, config: FleetConfig
    ) -> Fleet:
        """A fleet of such workers: the last one, if it can be."""
        if self._kept is not None:
            kept_spec, kept_config, fleet = self._kept
            if (kept_spec, kept_config) == (spec, config) and fleet.is_idle:
                return fleet
        self.close()
        fleet = Fleet(build_runtime(), spec, config)
        self._kept = (spec, config, fleet)
        return fleet

    def close(self) -> None:
        """End the workers. Twice is safe."""
        if self._kept is not None:
            self._kept[2].close()
            self._kept = None
