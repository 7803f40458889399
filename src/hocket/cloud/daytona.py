"""Workers in sandboxes of Daytona."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hocket.cloud.receiver import RECEIVER
from hocket.cloud.sandbox import PORT, CloudRuntime, Sandbox, variables
from hocket.core.contracts.runtime import Usability
from hocket.errors import UsageError, WorkerFailed
from hocket.workers.containers.command import context_hash, find_dockerfile
from hocket.workers.variables import Variables

_SESSION = "hocket"
_BUILD_S = 3600.0
"""Seconds for a snapshot to be built."""
_RENEW = "Make a new one at https://app.daytona.io and set DAYTONA_API_KEY."


@dataclass(frozen=True, slots=True, kw_only=True)
class DaytonaConfig(Variables):
    """What a sandbox is made of."""

    dockerfile: str = ""
    """Build a snapshot from this Dockerfile (or the folder that holds it), instead of naming one:
    once for the same context and resources."""
    python: str = "python3"
    """The interpreter in the snapshot, 3.10 or later, with numpy, gymnasium and the simulator."""
    timeout: int = 4 * 3600
    """Seconds that a sandbox lives at most, in whole minutes; a lane at its end gets another."""
    create_timeout: int = 600
    """Seconds for a sandbox to be created and started."""
    region: str = ""
    """Where: us, eu."""
    gpu: int | None = None
    """GPUs of each sandbox; with --runtime.dockerfile, as the three below: a snapshot that is there
    has its own."""
    cpus: int | None = None
    """Cores of each sandbox."""
    memory: int | None = None
    """GiB of each sandbox."""
    disk: int | None = None
    """GiB of disk of each sandbox."""


class DaytonaRuntime(CloudRuntime):
    """A sandbox of Daytona for each lane."""

    Config = DaytonaConfig
    name, package = "Daytona", "daytona"
    how_to_delete = "Delete it with `daytona delete {ident}`, or at https://app.daytona.io."

    @classmethod
    def examine_key(cls) -> Usability:
        if not os.environ.get("DAYTONA_API_KEY") and not os.environ.get("DAYTONA_JWT_TOKEN"):
            return Usability(is_usable=False, detail="There is no key.", advice=_RENEW)
        return Usability(is_usable=True, detail="A key is here; it is not tried.")

    def __init__(self, argument: str = "", config: DaytonaConfig | None = None) -> None:
        super().__init__()
        config = config or DaytonaConfig()
        self._config = config
        self._snapshot = argument
        if bool(argument) == bool(config.dockerfile):
            raise UsageError(
                "Name a snapshot, as in --runtime daytona:SNAPSHOT, or give --runtime.dockerfile "
                "PATH, and not both."
            )
        resources = (config.cpus, config.memory, config.disk, config.gpu)
        if argument and any(value is not None for value in resources):
            raise UsageError(
                "A snapshot on Daytona has its own cores, memory, disk and GPUs: --runtime.cpus, "
                "memory, disk and gpu go with --runtime.dockerfile."
            )
        if config.timeout < 60:
            raise UsageError("--runtime.timeout is 60 seconds or more on Daytona.")

    def prepare(self) -> None:
        import daytona

        if self._config.dockerfile:
            self._snapshot = self._build_once()
            return
        with _told("for the snapshot"):
            try:
                self._client.snapshot.get(self._snapshot)
            except daytona.DaytonaNotFoundError as exc:
                raise WorkerFailed(
                    f"Daytona has no snapshot {self._snapshot!r}. Make it there, or let it be "
                    "built: --runtime.dockerfile PATH (`hocket image` writes one)."
                ) from exc

    def create(self, key: str, tags: Mapping[str, str]) -> Sandbox:
        import daytona

        config = self._config
        # A sandbox that stops is deleted by itself. It does not stop while it seems idle, since
        # what runs in it does not count as activity there.
        wanted = daytona.CreateSandboxFromSnapshotParams(
            snapshot=self._snapshot,
            env_vars={**config.secrets(), **variables(key, config.env)},
            labels=dict(tags),
            public=False,
            ephemeral=True,
            auto_stop_interval=0,
            ttl_minutes=-(-config.timeout // 60),
            target=config.region or None,
        )
        with _told("to create a sandbox"):
            made = self._client.create(wanted, timeout=config.create_timeout)
        sandbox = DaytonaSandbox(made)
        sandbox.run(f"{shlex.quote(config.python)} -c {shlex.quote(RECEIVER)}")
        return sandbox

    def tagged(self, tag: str, value: str) -> Iterable[tuple[Sandbox, Mapping[str, str]]]:
        import daytona

        with _told("to list sandboxes"):
            query = daytona.ListSandboxesQuery(labels={tag: value})
            return [(DaytonaSandbox(one), one.labels) for one in self._client.list(query)]

    @cached_property
    def _client(self) -> Any:
        import daytona

        return daytona.Daytona()

    def _build_once(self) -> str:
        """The name of the snapshot of the Dockerfile, which is built where there is none."""
        import daytona

        config, path = self._config, find_dockerfile(self._config.dockerfile)
        sizes = "-".join(str(n or 0) for n in (config.cpus, config.memory, config.disk, config.gpu))
        name = f"hocket-{context_hash(path)}-{sizes}"
        with _told("for a snapshot of the Dockerfile"):
            snapshots = self._client.snapshot
            try:
                snapshots.get(name)
            except daytona.DaytonaNotFoundError:
                resources = daytona.Resources(
                    cpu=config.cpus, memory=config.memory, disk=config.disk, gpu=config.gpu
                )
                wanted = daytona.CreateSnapshotParams(
                    name=name, image=daytona.Image.from_dockerfile(path), resources=resources
                )
                # Another run may build it at this moment: a sandbox waits for it there.
                with contextlib.suppress(daytona.DaytonaConflictError):
                    snapshots.create(wanted, timeout=_BUILD_S)
        return name


class DaytonaSandbox:
    """A sandbox of Daytona. Nothing leads to it but its preview link, with a token."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._command: str | None = None
        self.ident: str = made.id

    def run(self, command: str) -> None:
        """Run a command there, in the background."""
        import daytona

        with _told("to run a command in a sandbox"):
            self._made.process.create_session(_SESSION)
            request = daytona.SessionExecuteRequest(command=command, run_async=True)
            self._command = self._made.process.execute_session_command(_SESSION, request).cmd_id

    def entrance(self) -> tuple[str, Mapping[str, str]]:
        with _told("for a preview link"):
            link = self._made.get_preview_link(PORT)
        return link.url, {"x-daytona-preview-token": link.token}

    def account(self) -> str:
        with _told("how the sandbox is"):
            if self._command is None:
                return ""
            code = self._made.process.get_session_command(_SESSION, self._command).exit_code
            if code is None:
                return ""
            logs = self._made.process.get_session_command_logs(_SESSION, self._command)
        said = (logs.stderr or logs.stdout or logs.output or "").strip()[-3000:]
        return f"The worker there ended with code {code}.\n{said}".strip()

    def delete(self) -> None:
        import daytona

        with contextlib.suppress(daytona.DaytonaNotFoundError):
            self._made.delete()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in words of hocket's what Daytona says."""
    import daytona

    try:
        yield
    except daytona.DaytonaAuthenticationError as exc:
        raise WorkerFailed(
            f"Daytona does not know the key: it is missing, wrong or has expired ({exc}). {_RENEW}"
        ) from exc
    except (daytona.DaytonaForbiddenError, daytona.DaytonaRateLimitError) as exc:
        raise WorkerFailed(
            f"Daytona does not allow what was asked {what}, has no room for more, or a limit of "
            f"the account is reached: {exc} Fewer --lanes need fewer sandboxes."
        ) from exc
    except daytona.DaytonaTimeoutError as exc:
        raise WorkerFailed(
            f"Daytona was asked {what}, and did not answer in time (--runtime.create-timeout): "
            f"{exc}"
        ) from exc
    except daytona.DaytonaError as exc:
        raise WorkerFailed(f"Daytona was asked {what}, and failed: {exc}") from exc
