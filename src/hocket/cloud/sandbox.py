"""Workers on rented machines: what every provider of sandboxes has in common.

A lane gets a sandbox of its own. In it a receiver waits for the code, and then for one WebSocket
with the lane's key, behind the provider's encrypted and authenticated entrance. A sandbox is
deleted when its lane ends; those of a process that was killed are found by their tags at the next
start.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.util
import logging
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol, TypeVar

from hocket.cloud.receiver import LISTEN_VARIABLE, send_code
from hocket.core.contracts.link import Link
from hocket.core.contracts.runtime import Usability, WorkerSpec
from hocket.errors import UsageError, WorkerFailed
from hocket.system.machine import host, is_gone, owner
from hocket.system.waits import awaiting
from hocket.workers.remote import websocket
from hocket.workers.remote.link import dial

_LOG = logging.getLogger(__name__)
HOST_TAG, OWNER_TAG, LEASE_TAG = "hocket-host", "hocket-owner", "hocket-lease"
PORT = 8080
"""Where a far end listens inside its sandbox; only the provider's entrance leads there."""
_READY_S = 600.0
"""Seconds for a sandbox to answer, once it is there: images of simulators are large."""
_OPEN_S = 60.0
"""Seconds for a far end that has its code to take the connection."""
_LOOK_S = 0.3
_ACCOUNT_S = 5.0
"""Seconds for a provider to say how a sandbox ended: the engine waits for it."""
_DELETE_TRIES = 3
_CLOSE_S = 60.0
"""Seconds for all deletions when a run ends."""

T = TypeVar("T")


class Sandbox(Protocol):
    """A machine of a provider's."""

    @property
    def ident(self) -> str:
        """By which the provider and its user know it."""

    def entrance(self) -> tuple[str, Mapping[str, str]]:
        """The https URL that leads to PORT, and headers that let one through. Raises OSError where
        it is not open yet, WorkerFailed where it never will be."""

    def account(self) -> str:
        """How it ended, in words; empty while it runs or where nobody knows."""

    def delete(self) -> None:
        """End it, and all that it costs; one that is gone already is no matter."""


class CloudRuntime(abc.ABC):
    """Gives each lane a sandbox of a provider's; a subclass makes them by its own package."""

    name: ClassVar[str]
    package: ClassVar[str]
    """Its name to import, and that of hocket's extra."""
    how_to_delete: ClassVar[str]
    """What a user does to delete one by hand."""

    def __init__(self) -> None:
        # Guards that one thread prepares, and the others wait for it.
        self._preparing = threading.Lock()
        self._is_prepared = False
        # Guards that whatever was created is deleted by `close`.
        self._lock = threading.Lock()
        self._leases: list[Rental] = []
        self._attaching = 0

    @abc.abstractmethod
    def prepare(self) -> None:
        """Find out, or build, what all sandboxes are made of; called once. Raises WorkerFailed."""

    @abc.abstractmethod
    def create(self, key: str, tags: Mapping[str, str]) -> Sandbox:
        """A new sandbox that runs the receiver. Raises WorkerFailed."""

    @abc.abstractmethod
    def tagged(self, tag: str, value: str) -> Iterable[tuple[Sandbox, Mapping[str, str]]]:
        """The sandboxes that have this tag, with all their tags."""

    @classmethod
    def examine(cls) -> Usability:
        """Look for the package and a key; nobody is asked."""
        if importlib.util.find_spec(cls.package) is None:
            detail = f"The package {cls.package} is not installed."
            advice = f"pip install 'hocket[{cls.package}]'"
            return Usability(is_usable=False, detail=detail, advice=advice)
        return cls.examine_key()

    @classmethod
    @abc.abstractmethod
    def examine_key(cls) -> Usability: ...

    @property
    def is_preparing(self) -> bool:
        return self._preparing.locked()

    def start(self, spec: WorkerSpec) -> Link:
        """Ask for a sandbox with a worker; a thread creates and calls it."""
        if spec.python is not None:
            raise UsageError(f"--env-python is of this machine; on {self.name}: --runtime.python.")
        return dial(spec, self._attach)

    def close(self) -> None:
        """Delete every sandbox. The runtime can be used again."""
        deadline = time.monotonic() + _CLOSE_S
        while True:
            with self._lock:
                leases, attaching = list(self._leases), self._attaching
            for lease in leases:
                lease.end()
            for lease in leases:
                lease.wait(max(0.0, deadline - time.monotonic()))
            with self._lock:
                self._leases = [lease for lease in self._leases if lease not in leases]
            # Those that are on their way notice that nobody waits, once the provider has answered.
            if not attaching or time.monotonic() > deadline:
                break
            time.sleep(0.05)

    def _attach(self, stream: socket.socket) -> Rental:
        with self._lock:
            self._attaching += 1
        try:
            name = self.name
            with self._preparing, awaiting(f"{name} to find or build the image"):
                if not self._is_prepared:
                    self._sweep()
                    self.prepare()
                    self._is_prepared = True
            self._require_listener(stream)
            key = websocket.new_key()
            with awaiting(f"sandboxes of {name} to come up"):
                lease = self._create(key)
                try:
                    self._join(lease, key, stream)
                except BaseException:
                    lease.end()
                    raise
            return lease
        finally:
            with self._lock:
                self._attaching -= 1

    def _create(self, key: str) -> Rental:
        number = uuid.uuid4().hex
        tags = {HOST_TAG: host(), OWNER_TAG: owner(), LEASE_TAG: number}
        try:
            lease = self._keep(self.create(key, tags))
        except WorkerFailed:
            # It may be there nevertheless, as when it did not start in time.
            with contextlib.suppress(WorkerFailed):
                for sandbox, _ in self.tagged(LEASE_TAG, number):
                    self._keep(sandbox).end()
            raise
        return lease

    def _keep(self, sandbox: Sandbox) -> Rental:
        lease = Rental(self, sandbox)
        with self._lock:
            self._leases = [one for one in self._leases if not one.is_over] + [lease]
        return lease

    def _sweep(self) -> None:
        """Delete the sandboxes of processes of this machine that have ended."""
        for sandbox, tags in self.tagged(HOST_TAG, host()):
            if is_gone(tags.get(OWNER_TAG, "")):
                self._keep(sandbox).end()

    def _join(self, lease: Rental, key: str, stream: socket.socket) -> None:
        url, headers = self._patiently(lease, stream, lease.sandbox.entrance, _READY_S)
        if not url.startswith("https://"):
            raise WorkerFailed(f"{self.name} gave a way in that is not encrypted: {url}")
        self._patiently(lease, stream, lambda: send_code(url, key, headers), _READY_S)

        def call() -> None:
            try:
                websocket.join(f"wss://{url.removeprefix('https://')}", key, stream, headers)
            except WorkerFailed as exc:  # A proxy says in its own way that nobody listens yet.
                raise ConnectionError(str(exc)) from exc

        self._patiently(lease, stream, call, _OPEN_S)

    def _patiently(
        self, lease: Rental, stream: socket.socket, ask: Callable[[], T], limit_s: float
    ) -> T:
        """What `ask` gives, once it does: until then it raises OSError."""
        deadline, pause_s = time.monotonic() + limit_s, _LOOK_S
        while True:
            self._require_listener(stream)
            try:
                return ask()
            except OSError as exc:
                trouble = str(exc)
            ended = lease.account()
            if ended or time.monotonic() > deadline:
                said = ended or f"It did not answer for {limit_s:g} s."
                raise WorkerFailed(
                    f"The sandbox {lease.sandbox.ident} on {self.name} did not come up. "
                    f"{said} {trouble}"
                )
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 1.5)

    def _require_listener(self, stream: socket.socket) -> None:
        """Raise where the link that this is for has been closed meanwhile."""
        poller = select.poll()
        poller.register(stream, 0)
        if poller.poll(0):
            raise WorkerFailed("It is not wanted any more.")


def variables(key: str, entries: Iterable[str]) -> dict[str, str]:
    """The environment of a receiver: what the user sets (NAME=VALUE), and what it must know."""
    found = dict(entry.partition("=")[::2] for entry in entries)
    return found | {websocket.KEY_VARIABLE: key, LISTEN_VARIABLE: f"0.0.0.0:{PORT}"}


class Rental:
    """A sandbox that has to be given back."""

    def __init__(self, runtime: CloudRuntime, sandbox: Sandbox) -> None:
        self._runtime = runtime
        self.sandbox = sandbox
        # Guards that it is given back once.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def end(self) -> None:
        """Give it back, in a thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._delete, daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until it is given back; tell where that takes too long."""
        assert self._thread is not None
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._tell("The request to delete it was not answered.")

    def explain(self) -> str:
        words = self.account() or "The connection to it was lost."
        return f"The sandbox {self.sandbox.ident} on {self._runtime.name}: {words}"

    def account(self) -> str:
        """How it ended; empty while it runs, or where the provider does not say so in time."""
        found: list[str] = []

        def ask() -> None:
            with contextlib.suppress(OSError, WorkerFailed):
                found.append(self.sandbox.account())

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_ACCOUNT_S)
        return found[0] if found else ""

    def _delete(self) -> None:
        for number in range(_DELETE_TRIES):
            try:
                self.sandbox.delete()
            except Exception as exc:  # noqa: BLE001 - whatever it is, the machine may run on
                trouble = str(exc) or type(exc).__name__
                time.sleep(number)
            else:
                return
        self._tell(trouble)

    def _tell(self, trouble: str) -> None:
        _LOG.error(
            "hocket: the sandbox %s on %s could not be deleted, and may go on costing: %s\n%s",
            self.sandbox.ident,
            self._runtime.name,
            trouble,
            self._runtime.how_to_delete.format(ident=self.sandbox.ident),
        )
