"""Who asks a server, and what is kept for each: envs and sessions belong to a client.

A connection of a stock client is a client of its own. hocket's clients have several connections,
lose some and make others, and may stand behind a gateway: each names itself in every request, by a
name that it drew and nobody can guess.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hocket.core.specs import EnvSpec
from hocket.errors import SessionLostError, WireError

LEFT_S = 60.0
"""Seconds for which a client without a connection is remembered: it may come back."""
SESSION_IDLE_S = 3600.0
"""Seconds without a row after which a session is ended."""
MOST_NUMBERS = 256
"""Requests of a connection that are recognised when they come again."""
MAX_NAME = 64
MAX_CLIENTS = 1024
"""Clients that one connection, a gateway's, can speak for."""
MAX_ENVS = 4096
MAX_SESSIONS = 1 << 14
"""Envs and attempts of one client that are kept at a time."""


OPENPI, VLLM_OMNI, VLA_EVAL = "openpi", "vllm-omni", "vla-eval"
PATHS = {
    "/openpi/policy": OPENPI,  # SGLang's clients
    "/v1/realtime/robot/openpi": VLLM_OMNI,
    "/vla-eval": VLA_EVAL,
}
"""What clients speak who come by a path of their own; by any other they speak the server's own."""


class CameTwice(Exception):
    """A request came that was answered before: nothing is to be done."""


@dataclass(slots=True, eq=False)
class Caller:
    """One connection, as a backend knows it."""

    name: str
    dialect: str = OPENPI
    lanes: list[int] = field(default_factory=list)
    asked: int = 0
    sessions: set[str] = field(default_factory=set)
    """Sessions that end with it, as those of stock clients do."""
    clients: dict[str, Client] = field(default_factory=dict)
    """hocket's clients that it has spoken for."""
    sent_at: float | None = None
    """When its last reply had been made."""
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_NUMBERS))
    """Numbers of its last requests for chunks."""

    def take(self, number: int) -> None:
        """Remember the number of a request for chunks. Raises CameTwice where it is known: to infer
        again would move sessions on."""
        if number in self.numbers:
            raise CameTwice
        self.numbers.append(number)


@dataclass(slots=True, eq=False)
class Client:
    """One of hocket's clients, over however many connections."""

    name: str
    callers: set[Caller] = field(default_factory=set)
    envs: dict[int, tuple[bytes, EnvSpec]] = field(default_factory=dict)
    """Each env by the client's number: as it came, and as it is."""
    sessions: set[str] = field(default_factory=set)
    """Its attempts, by the names that the policy knows them under."""
    going: asyncio.TimerHandle | None = None
    """The timer that forgets it, once its last connection has ended."""

    def session(self, name: str) -> str:
        """The name of this client's attempt among those of all clients."""
        return f"{self.name}/{name}"

    def env(self, number: int) -> EnvSpec:
        if number not in self.envs:
            raise WireError(f"This client has told of no env {number}.")
        return self.envs[number][1]

    def knows(self, number: int, plain: bytes) -> bool:
        """True where the client told the same of this env before, as each new connection does."""
        return number in self.envs and self.envs[number][0] == plain

    def tell(self, number: int, plain: bytes, spec: EnvSpec) -> None:
        """Keep an env that the client tells of."""
        if len(self.envs) >= MAX_ENVS and number not in self.envs:
            raise WireError(f"This client has told of {MAX_ENVS} envs, which is the limit.")
        if not self.knows(number, plain):
            self.envs[number] = (plain, spec)


class Clients:
    """All of hocket's clients, on one event loop. `end` ends a session; `forget` hears of each
    client that is gone, after its sessions have ended."""

    def __init__(self, end: Callable[[str], None], forget: Callable[[Client], None]) -> None:
        self._end = end
        self._forget = forget
        self._known: dict[str, Client] = {}
        self._used: dict[str, tuple[float, Client]] = {}
        """When each session was last used, and its client; the longest ago first."""

    def of(self, caller: Caller, name: object) -> Client:
        """The client of this name, which asks over this connection."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise WireError(f"An extended request names its client, in 1 to {MAX_NAME} characters.")
        client = caller.clients.get(name)
        if client is not None:
            return client
        if len(caller.clients) >= MAX_CLIENTS:
            raise WireError(f"This connection has spoken for {MAX_CLIENTS} clients already.")
        client = self._known.setdefault(name, Client(name))
        if client.going is not None:
            client.going.cancel()
            client.going = None
        client.callers.add(caller)
        caller.clients[name] = client
        return client

    def use(self, client: Client, sessions: Iterable[tuple[str, bool]]) -> None:
        """Keep these sessions, each with True where it begins; one that goes on must be known.
        Sessions that were not used for long end here: their client may be unable to end them."""
        now = time.monotonic()
        for session, begins in sessions:
            if session not in client.sessions:
                if not begins:
                    raise SessionLostError(
                        "What this server kept for the attempt is gone: it was idle for too long, "
                        "or its client had left."
                    )
                if len(client.sessions) >= MAX_SESSIONS:
                    raise WireError(f"This client has {MAX_SESSIONS} attempts, which is the limit.")
                client.sessions.add(session)
            self._used.pop(session, None)
            self._used[session] = (now, client)
        while self._used:
            session, (used_at, owner) = next(iter(self._used.items()))
            if now - used_at <= SESSION_IDLE_S:
                break
            self.end(owner, session)

    def end(self, client: Client, session: str) -> None:
        """End a session of this client's, if it has it."""
        if session in client.sessions:
            client.sessions.discard(session)
            del self._used[session]
            self._end(session)

    def leave(self, caller: Caller) -> None:
        """A connection is gone: clients that have no other are forgotten after a while."""
        for client in caller.clients.values():
            client.callers.discard(caller)
            if not client.callers and client.going is None:
                loop = asyncio.get_running_loop()
                client.going = loop.call_later(LEFT_S, self.forget, client)
        caller.clients = {}

    def forget(self, client: Client) -> None:
        """End all that is kept for a client."""
        self._known.pop(client.name, None)
        for caller in client.callers:
            caller.clients.pop(client.name, None)
        for session in list(client.sessions):
            self.end(client, session)
        if client.going is not None:
            client.going.cancel()
        self._forget(client)

    def close(self) -> None:
        for client in self._known.values():
            if client.going is not None:
                client.going.cancel()
