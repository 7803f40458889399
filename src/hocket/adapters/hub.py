"""Hugging Face's hub: fetches a checkpoint by its id, `USER/REPO` or `USER/REPO@REVISION`, and
pushes datasets and runs, through the hub's own library. Its cache, its endpoint (HF_ENDPOINT), its
token and HF_HUB_OFFLINE hold."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from hocket.errors import ConfigError, MissingExtraError
from hocket.system.waits import awaiting

_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""What a checkpoint is made of; pickles are never fetched."""
_shut: list[str] = []
"""What was fetched last, where the hub has been left alone since then only for that."""
_SHA256 = re.compile("[0-9a-f]{64}")


def is_id(name: str) -> bool:
    """True where a name that is no folder may be a checkpoint's of the hub."""
    return _ID.fullmatch(name) is not None


def fetch(name: str) -> Path:
    """The folder of a checkpoint, downloaded where the cache has not got it. Its name is the commit
    that was taken."""
    repo, revision = _parts(name)
    library = _library(f"There is no folder {name!r}, and to get it from the hub")
    constants = library.constants
    if _shut:  # by the last fetch, and by nobody else
        _shut.clear()
        constants.HF_HUB_OFFLINE = False
    what = f"{name} from {constants.ENDPOINT}"
    try:
        with awaiting(what) as change:
            folder = Path(
                library.snapshot_download(
                    repo,
                    revision=revision,
                    allow_patterns=list(_FILES),
                    tqdm_class=_silent_bar(lambda done: change(f"{what}, {done}")),
                )
            )
    except Exception as exc:
        # The library's errors, of its cache and of several network libraries, have no common root.
        if constants.HF_HUB_OFFLINE:
            raise ConfigError(
                f"There is no folder {name!r}, nor is it in the cache of Hugging Face's hub, and "
                f"HF_HUB_OFFLINE forbids to fetch it. Unset that, or name a folder."
            ) from exc
        raise ConfigError(
            f"There is no folder {name!r}, and it cannot be fetched: {_why(library, name, exc)} "
            f"Where the hub cannot be reached, copy the checkpoint here and name its folder."
        ) from exc
    # What is missing from here on must fail, and not be fetched by the policy's own parts.
    if not constants.HF_HUB_OFFLINE:
        _shut.append(name)
        constants.HF_HUB_OFFLINE = True
    return folder


def origin(name: str, folder: Path) -> dict[str, str]:
    """What was fetched: repository, revision, and the sha256 of each file. Large files are not
    read for it: the hub's cache calls them by their sha256."""
    return {"repository": _parts(name)[0], "revision": folder.name, **digests(folder)}


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file of a checkpoint."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    blob = path.resolve().name
    if _SHA256.fullmatch(blob):
        return blob
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _parts(name: str) -> tuple[str, str | None]:
    found = _ID.fullmatch(name)
    assert found is not None
    return found["repo"], found["revision"]


def _silent_bar(tell: Callable[[str], None]) -> type:
    """A progress bar for the library that calls `tell` with how far it is, and draws nothing."""
    from tqdm.auto import tqdm

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *given: Any, **settings: Any) -> None:
            settings.pop("name", None)
            super().__init__(*given, **{**settings, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            is_bytes = self.unit == "B"
            done, total = (round(x / (1e8 if is_bytes else 1)) for x in (self.n, self.total or 0))
            # Bytes in steps of 0.1 GB: each change may be a line of somebody's log.
            tell(f"{done / 10} of {total / 10} GB" if is_bytes else f"{done} of {total} files")
            return drawn

    return SilentBar


class Repository:
    """A dataset or a model of the hub's that files are pushed to. Making one asks the hub for it:
    what cannot be pushed is known before the work that leads there."""

    def __init__(self, repo: str, kind: Literal["dataset", "model"] = "dataset") -> None:
        found = _ID.fullmatch(repo)
        if found is None or found["revision"] is not None:
            raise ConfigError(f"A {kind} of the hub's is called USER/REPO, not {repo!r}.")
        library = _library(f"To push {repo}")
        self.repo = repo
        self.kind = kind
        self._library = library
        self._api = library.HfApi()
        if library.constants.HF_HUB_OFFLINE:
            raise ConfigError(f"HF_HUB_OFFLINE forbids to push {repo}. Unset it.")
        self._ask(self._api.create_repo, exist_ok=True)

    @property
    def address(self) -> str:
        folder = "datasets/" if self.kind == "dataset" else ""
        return f"{self._library.constants.ENDPOINT}/{folder}{self.repo}"

    def push(self, folder: Path, *, tag: str) -> str:
        """Upload a folder as one commit and tag it, as readers of the format look for it; the
        address of the repository."""
        done = self._ask(
            self._api.upload_folder,
            folder_path=folder,
            commit_message=f"Add {folder.name}, exported by hocket",
        )
        with contextlib.suppress(ConfigError):  # there is none yet
            self._ask(self._api.delete_tag, tag=tag)
        self._ask(self._api.create_tag, tag=tag, revision=done.oid)
        return self.address

    def add(self, files: Mapping[str, Path], why: str, *, as_request: bool = False) -> str:
        """Upload files, each to its place, as one commit or, `as_request`, as a pull request; the
        address of what was made."""
        operation = self._library.CommitOperationAdd
        done = self._ask(
            self._api.create_commit,
            operations=[
                operation(path_in_repo=place, path_or_fileobj=str(path))
                for place, path in files.items()
            ],
            commit_message=why,
            create_pr=as_request,
        )
        return str(done.pr_url if as_request else done.commit_url)

    def _ask(self, call: Callable[..., Any], **settings: Any) -> Any:
        try:
            return call(repo_id=self.repo, repo_type=self.kind, **settings)
        except Exception as exc:  # of several libraries, without a common root
            raise ConfigError(
                f"{self.repo} cannot be pushed: {_why(self._library, self.repo, exc)}"
            ) from exc


def _library(why: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as exc:
        raise MissingExtraError(
            f"{why} takes the package 'huggingface_hub'. Run: pip install 'hocket[hub]'; for a "
            f"policy, or name an interpreter that has it: --policy-python PATH."
        ) from exc
    return huggingface_hub


def _why(library: Any, name: str, exc: Exception) -> str:
    """Why the hub did not do what it was asked for, and what to do."""
    endpoint, errors, kind = library.constants.ENDPOINT, library.errors, type(exc).__name__
    status = getattr(getattr(exc, "response", None), "status_code", None)
    # A gated repository is one that was not found, to the library.
    if isinstance(exc, (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)):
        return (
            f"{endpoint} has no {name!r} that you may read ({kind}). Check the name and the "
            f"revision; a private one needs a token: hf auth login."
        )
    if status in (401, 403):
        return f"{endpoint} does not let you ({status}): give it your token, hf auth login."
    first = next(iter(str(exc).strip().splitlines()), kind)
    return f"{endpoint} does not answer as it should: {kind}: {first}"
