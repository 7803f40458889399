"""Gets a checkpoint from Hugging Face's hub by its id, `USER/REPO` or `USER/REPO@REVISION`, through
the hub's own library: its cache, its endpoint (HF_ENDPOINT), its token and HF_HUB_OFFLINE hold."""

from __future__ import annotations

import re
from pathlib import Path

from hocket.core.waits import awaiting
from hocket.errors import ConfigError, MissingExtraError

_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""What a checkpoint is made of; pickles are never fetched."""


def is_id(name: str) -> bool:
    """Whether a name that is no folder could be a checkpoint of the hub's."""
    return _ID.fullmatch(name) is not None


def fetch(name: str) -> Path:
    """The folder of a checkpoint, downloaded where the cache has not got it. Its name is the commit
    that was taken."""
    found = _ID.fullmatch(name)
    assert found is not None
    repo, revision = found["repo"], found["revision"]
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError as exc:
        raise MissingExtraError(
            f"There is no folder {name!r}, and to get it from the hub takes the package "
            f"'huggingface_hub'. Run: pip install huggingface_hub; or name an interpreter that has "
            f"it: --policy-python PATH."
        ) from exc
    endpoint = constants.ENDPOINT
    try:
        with awaiting(f"{name} from {endpoint}"):
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=list(_FILES)))
    except Exception as exc:
        # The library's errors, of its cache and of several network libraries, have no common root.
        raise ConfigError(_told(name, endpoint, exc, offline=constants.HF_HUB_OFFLINE)) from exc
    # What is missing from here on must fail, and not be fetched by the policy's own parts.
    constants.HF_HUB_OFFLINE = True
    return folder


def _told(name: str, endpoint: str, exc: Exception, *, offline: bool) -> str:
    first = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
    if offline:
        return (
            f"There is no folder {name!r}, nor is it in the cache of Hugging Face's hub, and "
            f"HF_HUB_OFFLINE forbids to fetch it. Unset that, or name a folder."
        )
    kind = type(exc).__name__
    if kind in ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError"):
        return (
            f"{endpoint} has no {name!r} that you may read ({kind}). Check the name and the "
            f"revision; a private one needs a token: hf auth login."
        )
    return (
        f"There is no folder {name!r}, and it cannot be fetched from {endpoint}: {kind}: {first} "
        f"Where the hub cannot be reached, copy the checkpoint here and name its folder."
    )
