"""Workers that make their envs before it is known what a policy reads of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.wire import Build, Failed
from hocket.errors import HocketError, WorkerFailed

_TRIES = 3
"""Envs that may fail to be made before nothing else is tried: as many as one trial may lose."""


class EarlyLink(Link, Protocol):
    """A link that may be given out before its worker knows what it is for."""

    def open(self, spec: WorkerSpec) -> None:
        """Tell the worker what it is for; its Hello comes then."""


class EarlyWorkers:
    """Starts workers for some tasks, and gives them out to whoever asks for such workers."""

    def __init__(self, start: Callable[[WorkerSpec], EarlyLink]) -> None:
        """`start` gives a link to a worker that knows nothing yet."""
        self._start = start
        self._spec = WorkerSpec(suites={})
        self._links: list[tuple[EarlyLink, Build]] = []
        self._failed = 0

    def begin(self, spec: WorkerSpec, tasks: Iterable[tuple[str, str]]) -> None:
        """Start a worker for each task, by suite and name. Waits for nothing."""
        self._spec, plain = spec, spec.to_plain()
        for suite, task in tasks:
            self._order(Build(plain, suite, task))

    def _order(self, order: Build) -> None:
        link = self._start(self._spec)
        link.send(order)
        self._links.append((link, order))

    def look(self) -> None:
        """Raise what went wrong where no worker can make its env, after a few tries."""
        for each in tuple(self._links):
            link, order = each
            trouble = _trouble(link)
            if trouble is None:
                continue
            self._links.remove(each)
            link.kill()
            self._failed += 1
            if self._failed < _TRIES:
                self._order(order)
            elif not self._links:
                raise trouble

    def take(self, spec: WorkerSpec) -> Link:
        """A worker of this spec: one that has begun already, or else a new one."""
        known = replace(spec, reads=None, cameras=None, history=1, slots=1, sinks=(), folder=None)
        is_same = replace(known, tells=False) == self._spec
        while self._links:
            link, _ = self._links.pop(0)
            if is_same and _trouble(link) is None:
                link.open(spec)
                return link
            link.kill()
        link = self._start(spec)
        link.open(spec)
        return link

    def close(self) -> None:
        """End those that nobody asked for. Twice is safe."""
        while self._links:
            self._links.pop()[0].kill()


def _trouble(link: Link) -> HocketError | None:
    """Why a worker has no env, and will have none."""
    try:
        return next((said.error for said in link.receive() if isinstance(said, Failed)), None)
    except WorkerFailed as exc:
        return exc
