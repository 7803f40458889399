"""Workers in sandboxes of Modal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.cloud.receiver import RECEIVER
from hocket.cloud.sandbox import PORT, CloudRuntime, Sandbox, variables
from hocket.core.contracts.runtime import Usability
from hocket.errors import UsageError, WorkerFailed
from hocket.workers.containers.command import find_dockerfile
from hocket.workers.variables import Variables

if TYPE_CHECKING:
    import modal

_RENEW = "Make a new one with `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET."


@dataclass(frozen=True, slots=True, kw_only=True)
class ModalConfig(Variables):
    """What a sandbox is made of."""

    app: str = "hocket"
    """The app that sandboxes belong to; it is made where there is none."""
    dockerfile: str = ""
    """Build the image there from this Dockerfile (or the folder that holds it), instead of naming
    one. Modal keeps it, and builds again only what has changed."""
    python: str = "python3"
    """The interpreter in the image, 3.10 or later, with numpy, gymnasium and the simulator."""
    timeout: int = 4 * 3600
    """Seconds that a sandbox lives at most, up to 86400; a lane that reaches it gets another."""
    region: str = ""
    """Where: us, eu, us-east-1."""
    gpu: str = ""
    """A10G, H100, A10G:2."""
    cpus: float | None = None
    """Cores that are reserved for each sandbox."""
    memory: int | None = None
    """MiB that are reserved for each sandbox."""


class ModalRuntime(CloudRuntime):
    """A sandbox of Modal for each lane."""

    Config = ModalConfig
    name, package = "Modal", "modal"
    how_to_delete = (
        "Delete it with: python -c \"import modal; modal.Sandbox.from_id('{ident}').terminate()\""
    )

    @classmethod
    def examine_key(cls) -> Usability:
        kept = Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
        if not os.environ.get("MODAL_TOKEN_ID") and not kept.is_file():
            detail = "There is no token."
            return Usability(is_usable=False, detail=detail, advice="modal token new")
        return Usability(is_usable=True, detail="A token is here; it is not tried.")

    def __init__(self, argument: str = "", config: ModalConfig | None = None) -> None:
        super().__init__()
        config = config or ModalConfig()
        self._config = config
        self._app_name = config.app
        self._image_name = argument
        if config.dockerfile:
            # What is named is then where the image is built.
            self._app_name, self._image_name = argument or config.app, ""
        elif not argument:
            raise UsageError(
                "Name an image, as in --runtime modal:IMAGE (published on Modal, or of a registry: "
                "owner/name:tag), or give --runtime.dockerfile PATH."
            )
        if not 0 < config.timeout <= 86400:
            raise UsageError("--runtime.timeout is between 1 and 86400 seconds on Modal.")
        self._image: modal.Image | None = None

    def prepare(self) -> None:
        import modal

        if self._config.dockerfile:
            path = find_dockerfile(self._config.dockerfile)
            self._image = modal.Image.from_dockerfile(path, context_dir=path.parent)
        elif "/" in self._image_name:
            self._image = modal.Image.from_registry(self._image_name)
        elif self._image_name.startswith("im-"):
            self._image = modal.Image.from_id(self._image_name)
        else:
            self._image = modal.Image.from_name(self._image_name)
        with _told("to find or build the image"):
            try:
                self._image.build(self._app)
            except modal.exception.NotFoundError as exc:
                raise WorkerFailed(
                    f"Modal has no image {self._image_name!r} ({exc}). Publish it there, name one "
                    "of a registry (owner/name:tag), or build one: --runtime.dockerfile PATH "
                    "(`hocket image` writes one)."
                ) from exc

    def create(self, key: str, tags: Mapping[str, str]) -> Sandbox:
        import modal

        config = self._config
        with _told("to create a sandbox"):
            made = modal.Sandbox.create(
                config.python,
                "-c",
                RECEIVER,
                app=self._app,
                image=self._image,
                tags=dict(tags),
                env=variables(key, config.env),
                secrets=[modal.Secret.from_dict(dict(config.secrets()))],
                timeout=config.timeout,
                region=config.region or None,
                gpu=config.gpu or None,
                cpu=config.cpus,
                memory=config.memory,
            )
        return ModalSandbox(made)

    def tagged(self, tag: str, value: str) -> Iterable[tuple[Sandbox, Mapping[str, str]]]:
        import modal

        with _told("to list sandboxes"):
            listed = list(modal.Sandbox.list(app_id=self._app.app_id, tags={tag: value}))
            return [(ModalSandbox(one), one.get_tags()) for one in listed]

    @cached_property
    def _app(self) -> Any:
        import modal

        with _told(f"for the app {self._app_name!r}"):
            return modal.App.lookup(self._app_name, create_if_missing=True)


class ModalSandbox:
    """A sandbox of Modal. Nothing leads to it but its connect token."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self.ident: str = made.object_id

    def entrance(self) -> tuple[str, Mapping[str, str]]:
        with _told("for a connect token"):
            token = self._made.create_connect_token(port=PORT)
        return token.url, {"Authorization": f"Bearer {token.token}"}

    def account(self) -> str:
        with _told("how the sandbox is"):
            code = self._made.poll()
        if code is None:
            return ""
        meaning = {
            124: "It reached the end of its lifetime (--runtime.timeout).",
            137: "It was terminated, perhaps for its memory (--runtime.memory).",
        }.get(code, "")
        return f"It ended with code {code}. {meaning}".strip()

    def delete(self) -> None:
        import modal

        with contextlib.suppress(modal.exception.NotFoundError):
            self._made.terminate()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Say in words of hocket's what Modal says."""
    import modal

    try:
        yield
    except modal.exception.AuthError as exc:
        raise WorkerFailed(
            f"Modal does not know the token: it is missing, wrong or has expired ({exc}). {_RENEW}"
        ) from exc
    except modal.exception.PermissionDeniedError as exc:
        raise WorkerFailed(f"Modal does not allow this token what was asked {what}: {exc}") from exc
    except modal.exception.ResourceExhaustedError as exc:
        raise WorkerFailed(
            f"Modal has no room for more, or a limit of the account is reached: {exc} Fewer "
            "--lanes need fewer sandboxes."
        ) from exc
    except modal.exception.Error as exc:
        words = str(exc) or type(exc).__name__
        raise WorkerFailed(f"Modal was asked {what}, and failed: {words}") from exc
