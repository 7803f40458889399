"""Several OpenPI servers behind one question.

Everything here runs on one event loop and needs no lock. After a drop all frames of a question are
asked again, perhaps elsewhere, so no answer ever mixes what came before the drop with what came
after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hocket.adapters.policies.openpi.connection import Connection, Dropped, Read, Unreachable
from hocket.adapters.policies.openpi.replica import Patience, Replica, Reply
from hocket.errors import PolicyUnavailableError, SessionLostError

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Pin:
    """Where an attempt's state lives."""

    replica: Replica
    generation: str


@dataclass(slots=True)
class Servers:
    """All servers that may answer. Stateless questions go to the least loaded one that is up, and
    move on when it fails; sessions stay where they began."""

    replicas: Sequence[Replica]
    patience: Patience
    _pins: dict[str, Pin] = field(default_factory=dict)

    async def ask(
        self, frames: Sequence[bytes], sessions: Sequence[str] = (), read: Read[Any] = bytes
    ) -> Reply:
        """The answer to a question, however often it must be asked; see `Patience`.

        Sessions that share a question must have been pinned to one server.
        """
        if not sessions:
            return await self._until_answered(lambda replica: replica.ask(frames, read, None))
        pins = [self._pins[session] for session in sessions if session in self._pins]
        if len(pins) < len(sessions) or len({pin.generation for pin in pins}) > 1:
            raise SessionLostError("The server that knew this attempt is gone.")
        generation = pins[0].generation
        try:
            return await self._until_answered(
                lambda replica: replica.ask(frames, read, generation), pins[0].replica, repeats=0
            )
        except Dropped as exc:
            raise SessionLostError(f"{exc}; what it knew of this attempt is lost.") from exc

    async def tell_all(self, key: bytes, frame: bytes, read: Read[Any] = bytes) -> list[Reply]:
        """Tell every server the same, now and whenever a connection is made again; what is told
        under the same key takes the place of what was. A server that is down hears it when it is
        back; one at least must be there."""
        for replica in self.replicas:
            replica.greet(key, frame)

        async def tell(replica: Replica) -> Reply | None:
            try:
                return await replica.ask([frame], read, None)
            except (Unreachable, Dropped):
                replica.failed(asyncio.get_running_loop().time())
                return None

        replies = [reply for reply in await asyncio.gather(*map(tell, self.replicas)) if reply]
        return replies or [
            await self._until_answered(lambda replica: replica.ask([frame], read, None))
        ]

    async def connect(self) -> Connection:
        """Wait until one server is there, and say what it announces."""
        return await self._until_answered(lambda replica: replica.connect())

    async def begin(self, session: str) -> Replica:
        """Pin a session to the least loaded server that is there."""

        async def meet(replica: Replica) -> Replica:
            await replica.connect()
            return replica

        replica = await self._until_answered(meet)
        self._pins[session] = Pin(replica, replica.generation)
        return replica

    def end(self, session: str) -> None:
        """Forget a session."""
        self._pins.pop(session, None)

    @property
    def reconnects(self) -> int:
        """Connections to any server that were made after one was lost."""
        return sum(replica.reconnects for replica in self.replicas)

    def knows(self, source: str) -> bool:
        """Whether `source` names a connection that still lives."""
        return any(replica.knows(source) for replica in self.replicas)

    @property
    def load(self) -> int:
        """Questions in flight or waiting, on all servers."""
        return sum(replica.load for replica in self.replicas)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _until_answered(
        self,
        ask: Callable[[Replica], Awaitable[Answer]],
        only: Replica | None = None,
        repeats: int | None = None,
    ) -> Answer:
        """Ask the least loaded server, or `only` that one, again after drops and outages."""
        clock = asyncio.get_running_loop().time
        repeats = self.patience.retries if repeats is None else repeats
        drops = 0
        while True:
            replica = only or self._least_loaded(clock())
            if replica.retry_at > clock():
                await asyncio.sleep(replica.retry_at - clock())
            try:
                return await ask(replica)
            except Unreachable as exc:
                replica.failed(clock())
                self._give_up_if_hopeless(clock(), [only] if only else self.replicas, exc)
            except Dropped as exc:
                replica.failed(clock())
                drops += 1
                if drops > repeats:
                    raise Dropped(f"Asked {drops} times, the last time: {exc}") from exc

    def _least_loaded(self, now: float) -> Replica:
        return min(self.replicas, key=lambda replica: (replica.retry_at > now, replica.load))

    def _give_up_if_hopeless(
        self, now: float, replicas: Sequence[Replica], last: Unreachable
    ) -> None:
        outages = [replica.outage_since for replica in replicas]
        limit_s = self.patience.ready_timeout_s
        if all(since is not None and now - since >= limit_s for since in outages):
            raise PolicyUnavailableError(
                f"No server answered for {limit_s:.0f} s (the last: {last}). Is it running? "
                f"--policy.ready-timeout-s says how long to wait."
            ) from last
