"""Training on disk: whole or absent, and nothing in it that could be executed.

    <run>/checkpoints/<version>/   weights.safetensors   optimizer.safetensors
                                   statistics.safetensors, where anything is measured
                                   policy.json           state.json
    <run>/best/                    weights.safetensors   policy.json    score.json
    <run>/frozen.safetensors       the parameters that are not trained, where there are any

Weights are what is trained, and the buffers. What is frozen is written once: every folder has it
under the same name as a hard link, so that a folder can be taken elsewhere as it is. A folder is
written under another name and renamed when it is whole and durable.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hocket.errors import ConfigError, RunFolderError
from hocket.records import formats
from hocket.system.durable import disk_error, drafted, sync_folder

WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
FROZEN = "frozen.safetensors"
STATISTICS = "statistics.safetensors"
POLICY, STATE = "policy.json", "state.json"
CHECKPOINTS, BEST, SCORE = "checkpoints", "best", "score.json"
_KEPT = 3
"""Checkpoints that a run keeps, so that one that a failing disk spoiled is not the only one."""

_HINT = """
They must be safetensors: a file of torch.save is a pickle, which is never loaded here. Convert it:
    safetensors.torch.save_file(torch.load(FILE, weights_only=True), "{name}.safetensors")"""


def write_folder(
    folder: Path,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    tables: Mapping[str, Mapping[str, Any]],
    *,
    frozen: Path | None = None,
) -> None:
    """Write a folder of safetensors and JSON files, whole or not at all; it replaces one of that
    name. A file of `frozen` parameters, where there is one, is linked and not written again."""
    draft = folder.with_name(f".{folder.name}.tmp")
    old = folder.with_name(f".{folder.name}.old")
    try:
        for stale in (draft, old):
            shutil.rmtree(stale, ignore_errors=True)
        draft.mkdir(parents=True)
        for name, group in tensors.items():
            save_file(_apart(group), draft / name)
        if frozen is not None and frozen.is_file():
            _link(frozen, draft / FROZEN)
        for name, table in tables.items():
            numbered = {"format": formats.CHECKPOINT.number, **table}
            (draft / name).write_text(json.dumps(numbered, indent=1))
        for file in draft.iterdir():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        sync_folder(draft)
        if folder.exists():
            os.rename(folder, old)
        os.rename(draft, folder)
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as exc:
        raise disk_error(exc, folder) from exc


def save_frozen(run: Path, parameters: Mapping[str, torch.Tensor]) -> None:
    """Write the parameters that a run leaves as they are, if it has any, and has not yet."""
    file = run / FROZEN
    if not parameters or file.is_file():
        return
    with drafted(file) as draft:
        save_file(_apart(parameters), draft)


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as a file takes them: in the host's memory, none inside of another."""
    plain, known = {}, set[int]()
    for key, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        plain[key] = tensor.clone() if memory in known else tensor
        known.add(memory)
    return plain


def _link(file: Path, link: Path) -> None:
    try:
        os.link(file, link)
    except OSError:  # a file system without links
        shutil.copyfile(file, link)


def save_checkpoint(
    run: Path,
    version: int,
    *,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    statistics: Mapping[str, torch.Tensor],
    policy: Mapping[str, Any],
    state: Mapping[str, Any],
) -> Path:
    """Write everything that training needs to go on from here, and keep the newest few."""
    folder = run / CHECKPOINTS / f"{version:08d}"
    tensors = {WEIGHTS: weights, OPTIMIZER: optimizer}
    if statistics:
        tensors[STATISTICS] = statistics
    write_folder(folder, tensors, {POLICY: policy, STATE: state}, frozen=run / FROZEN)
    for stale in checkpoints(run)[:-_KEPT]:
        shutil.rmtree(stale, ignore_errors=True)
    return folder


def checkpoints(run: Path) -> list[Path]:
    """The folders of whole checkpoints, oldest first."""
    found = (run / CHECKPOINTS).glob("*")
    return sorted(path for path in found if path.name.isdigit() and (path / STATE).is_file())


def latest(run: Path) -> Path:
    """The folder of the checkpoint to resume from."""
    found = checkpoints(run)
    if not found:
        raise RunFolderError(f"{run} holds no checkpoint to resume from.")
    return found[-1]


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON file of a checkpoint; one of another format is refused."""
    try:
        table: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise RunFolderError(f"{path} cannot be read: {exc}") from exc
    formats.CHECKPOINT.check(path, table.pop("format", None) if isinstance(table, dict) else None)
    return table


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except Exception as exc:
        hint = "" if path.suffix == ".safetensors" else _HINT.format(name=path.with_suffix("").name)
        raise ConfigError(f"Weights {str(path)!r} cannot be read: {exc}{hint}") from exc
    return tensors


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of weights, and what is frozen beside it where it is one of `write_folder`."""
    tensors = read_tensors(path)
    frozen = path.with_name(FROZEN)
    if path.name == WEIGHTS and frozen.is_file():
        tensors = {**read_tensors(frozen), **tensors}
    return tensors


def optimizer_tensors(optimizer: Any, names: list[str]) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name; its settings come from the configuration."""
    state = optimizer.state_dict()["state"]
    return {
        f"{names[index]}|{key}": torch.as_tensor(value)
        for index, entries in state.items()
        for key, value in entries.items()
    }


def load_optimizer(optimizer: Any, names: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Give an optimizer of the same parameters its state back."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition("|")
        with contextlib.suppress(ValueError):
            state.setdefault(names.index(parameter), {})[key] = tensor
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)
