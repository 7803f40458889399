"""`sidecar:NAME`: any policy in a process of another interpreter, with dependencies of its own.

    --policy sidecar:my_package:MyPolicy --policy.python path/to/venv/bin/python

The child serves the policy over OpenPI's protocol on a local socket; arrays of observations lie in
shared memory. hocket need not be installed there: it is found by path, and so are msgpack and
websockets where that interpreter has none. The child ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any

from hocket import rooms
from hocket.adapters.policies.openpi.policy import OpenPI, OpenPIConfig
from hocket.core.data import Actions, Batch, Row
from hocket.core.specs import EnvSpec, PolicySpec
from hocket.errors import ConfigError, PolicyUnavailableError, SessionLostError
from hocket.system.child import Child
from hocket.system.scratch import ScratchFolder
from hocket.system.waits import awaiting

LOCAL_OUTAGE_S = 3.0
"""Seconds after which a local socket that nobody answers has lost its process."""
MAX_RESTARTS = 3
"""Restarts of one policy; one that dies more often is given up."""
_END_S = 2.0
"""Seconds for the process to end by itself."""
_LENT = ("msgpack", "websockets")
_START = """\
import sys
sys.path.insert(0, {hocket!r})
sys.path.append({lent!r})
try:
    from hocket.serve.sidecar import main
except ImportError as exc:
    sys.exit(f"{{exc}}. Run: {{sys.executable}} -m pip install {{exc.name}}")
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarConfig:
    python: str = sys.executable
    """Interpreter to run the policy in (3.10 or later), with numpy: path/to/venv/bin/python."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The policy's own settings."""
    ready_timeout_s: float = 600.0
    """Seconds for the policy to load."""
    timeout_s: float = 3600.0
    """Seconds for one inference, the first of which may compile, where nobody else watches over it:
    a run has its own --infer-timeout."""


class Sidecar:
    """A policy in another process. Built when it is first needed; started again when it dies."""

    Config = SidecarConfig

    def __init__(self, argument: str, config: SidecarConfig | None = None) -> None:
        if not argument:
            raise ConfigError("sidecar: needs the policy's name: sidecar:my_package:MyPolicy.")
        rooms.require("serve")
        self._name = argument
        self._config = config or SidecarConfig()
        # Guards the child: threads that find it dead at once must start one, not two.
        self._lock = threading.Lock()
        self._child: _Served | None = None
        self._starts = 0
        self._bound: list[EnvSpec] = []
        self._continued: tuple[str, Mapping[str, Any]] | None = None

    def begin_loading(self) -> Callable[[], None]:
        """Begin to load it, and wait for nothing; what this gives ends the process."""
        with self._lock:
            return self._begin().process.kill

    @property
    def spec(self) -> PolicySpec:
        """What the policy says of itself. The first call waits until it is loaded."""
        return self._living().client.spec

    @property
    def is_stateful(self) -> bool:
        return self._living().client.is_stateful

    def bind(self, spec: EnvSpec) -> None:
        """Tell the policy, and every process that is started for it later."""
        with _explained(self._living()) as client:
            client.bind(spec)
        self._bound.append(spec)

    @property
    def continuations(self) -> tuple[str, ...]:
        return self._living().client.continuations

    def continue_by(self, method: str, settings: Mapping[str, Any]) -> None:
        """Tell the policy, and every process that is started for it later."""
        self._living().client.continue_by(method, settings)
        self._continued = (method, settings)

    def infer(self, batch: Batch) -> Actions:
        """Ask the policy; an error tells what its process said last."""
        with _explained(self._living()) as client:
            return client.infer(batch)

    def begin_session(self, row: Row) -> None:
        with _explained(self._living()) as client:
            client.begin_session(row)

    def end_session(self, session: str) -> None:
        """Tell the policy, unless its process is gone and the session with it."""
        child = self._child
        if child is not None and child.is_ready and child.process.is_alive:
            child.client.end_session(session)

    def restart(self) -> bool:
        """End the child, which does not answer; the next call starts another, a few times."""
        child = self._child  # without the lock, which whoever waits for a child to load holds
        if child is not None and child.is_ready:
            child.process.kill()
        return self._starts <= MAX_RESTARTS

    def close(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def _living(self) -> _Served:
        with self._lock:
            if self._child is not None and self._child.is_ready:
                if self._child.process.is_alive:
                    return self._child
                last = self._child.ending()
                self._child.close()
                self._child = None
                if self._starts > MAX_RESTARTS:
                    raise PolicyUnavailableError(
                        f"The sidecar of {self._name} died {self._starts} times. {last}"
                    )
            child = self._child or self._begin()
            try:
                child.wait_until_ready()
            except BaseException:
                self._child = None
                child.close()
                raise
            for spec in self._bound:
                child.client.bind(spec)
            if self._continued is not None:
                child.client.continue_by(*self._continued)
            return child

    def _begin(self) -> _Served:
        self._starts += 1
        self._child = _Served(self._name, self._config)
        return self._child


class _Served:
    """The policy's process, its folder, and the client that talks to it once it is ready."""

    client: OpenPI

    def __init__(self, name: str, config: SidecarConfig) -> None:
        self._name = name
        self._config = config
        self.is_ready = False
        self._deadline = time.monotonic() + config.ready_timeout_s
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(ScratchFolder("sidecar")).path
            hocket, lent, socket = folder / "hocket-path", folder / "lent-path", folder / "socket"
            self._socket = socket
            _lend(hocket, ("hocket",))
            _lend(lent, _LENT)
            program = _START.format(hocket=str(hocket), lent=str(lent))
            words = [config.python, "-c", program]
            self.process = Child(words, stdin=PIPE, stdout=PIPE, failure=ConfigError)
            stack.callback(self.process.end, _END_S)
            order = {"policy": name, "config": dict(config.config), "socket": str(socket)}
            self.process.tell(json.dumps(order).encode() + b"\n")
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def wait_until_ready(self) -> None:
        """Wait until the policy is loaded, and connect to it; or say why it is not."""
        self._hear()
        settings = OpenPIConfig(timeout_s=self._config.timeout_s, ready_timeout_s=LOCAL_OUTAGE_S)
        self.client = OpenPI(f"unix:{self._socket}", settings)
        self._stack.callback(self.client.close)
        self.is_ready = True

    def ending(self) -> str:
        """How the process is or ended, and the end of what it printed."""
        return f"The sidecar of {self._name} {self.process.ending()}"

    def _hear(self) -> None:
        """Wait until the child says that it is ready, or why not; show meanwhile what it waits
        for."""
        deadline, timeout_s = self._deadline, self._config.ready_timeout_s
        with contextlib.ExitStack() as waits:
            while line := self.process.line(deadline - time.monotonic()):
                said = json.loads(line)
                waits.close()
                for text in said.get("awaited", ()):
                    waits.enter_context(awaiting(text))
                if "refused" in said:
                    raise ConfigError(said["refused"])
                if "ready" in said:
                    return
        raise PolicyUnavailableError(
            f"{self._name} was not loaded within {timeout_s:.0f} s. {self.ending()}"
            if time.monotonic() >= deadline
            else f"{self._name} could not be loaded. {self.ending()}"
        )


@contextlib.contextmanager
def _explained(child: _Served) -> Iterator[OpenPI]:
    """Have errors of a process that is gone say first how it ended."""
    try:
        yield child.client
    except (PolicyUnavailableError, SessionLostError) as exc:
        raise type(exc)(f"{child.ending()}\n{exc}") from exc


def _lend(folder: Path, packages: tuple[str, ...]) -> None:
    """Make a folder for another interpreter's path that holds only these packages of this one."""
    folder.mkdir()
    for name in packages:
        found = importlib.util.find_spec(name)
        if found is None or not found.submodule_search_locations:
            raise ConfigError(f"{name!r} is no package that could be lent to a sidecar.")
        os.symlink(found.submodule_search_locations[0], folder / name)
