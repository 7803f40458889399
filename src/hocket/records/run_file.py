"""Configurations on disk (`run.yaml`), and settings shared by several adapters.

A run file is one flat mapping: the fields of the evaluation's configuration, and `about`, which
says where and with what the run was made. What a run wrote and what a person writes by hand are
the same format, so that `--config runs/x/run.yaml` reproduces a run; `about` is then not read.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hocket.errors import ConfigError, RunFolderError
from hocket.records import formats
from hocket.system.bounded_yaml import BoundedLoader, load_yaml
from hocket.system.durable import drafted

RUN_FILE = "run.yaml"
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's own, where yaml was built with it: a run writes its file once for every task."""


def save_run(folder: Path, config: Mapping[str, Any], *, about: Mapping[str, Any]) -> Path:
    """Write the configuration and what is to be known about the run into its folder."""
    path = folder / RUN_FILE
    folder.mkdir(parents=True, exist_ok=True)
    plain = {**config, "about": {"format": formats.RUN.number, **about}}
    with drafted(path, is_durable=False) as draft:
        draft.write_text(yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=100))
    return path


def load_run(path: Path) -> dict[str, Any]:
    """The configuration in a run file, or in the run folder that holds one."""
    file = path / RUN_FILE if path.is_dir() else path
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The configuration {str(file)!r} cannot be read: {exc}") from exc
    try:
        plain = load_yaml(text, _StrictLoader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"The configuration {str(file)!r} is not valid YAML: {exc}") from exc
    if not isinstance(plain, dict) or not all(isinstance(key, str) for key in plain):
        raise ConfigError(f"The configuration {str(file)!r} must be a mapping of names to values.")
    about = plain.pop("about", None)
    if about is not None:  # a run wrote it, not a person
        formats.RUN.check(file, about.get("format") if isinstance(about, dict) else None)
    return plain


def new_folder(out: Path | None, env: Sequence[str], policy: str) -> Path:
    """The folder for a new run, not made yet: `out`, or one named after time, env and policy. A
    folder that already holds something is refused."""
    if out is None:
        subject = f"{'+'.join(env)}-{policy}"
        slug = "".join(c if c.isalnum() or c in "-_.+" else "-" for c in subject)
        slug = slug.encode()[:80].decode(errors="ignore")
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}"
        tails = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        return next(path for tail in tails if not (path := Path("runs", stem + tail)).exists())
    if (out / RUN_FILE).exists():
        raise RunFolderError(f"{out} already holds a run. Give another --out, or remove it.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} exists and is not an empty folder. Give another --out.")
    return out


def load_about(folder: Path) -> dict[str, Any]:
    """What a run folder's file says about where and with what the run was made; empty where it says
    nothing."""
    try:
        plain = load_yaml((folder / RUN_FILE).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    about = plain.get("about") if isinstance(plain, dict) else None
    return about if isinstance(about, dict) else {}


class _StrictLoader(BoundedLoader):
    """The safe loader, but a key given twice is an error and not silently the last."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands there twice", key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates
)
_StrictLoader.add_implicit_resolver(
    # YAML 1.1 takes 3e-4, without a point, for text; nobody who writes it does.
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
