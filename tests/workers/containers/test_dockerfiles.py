"""The Dockerfile that hocket writes, built without a registry of images: on files of here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.cli import main
from support.podman import IMAGE, mounts, podman

__all__ = ["podman"]
BASE = "localhost/hocket-base:1"
PYTHON = "/opt/venv/bin/python3"
_BASE = f"""
FROM {IMAGE}
ENV PATH=/opt/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin
RUN {os.path.realpath(sys.executable)} -m venv /opt/venv
"""


def _build(tag: str, folder: Path, *more: str) -> None:
    """Build an image whose commands see this machine's programs and packages, each with a layer of
    its own on top: what they write there goes with them, and the rest stays in the image."""
    names = [f"{path}:{path}:O" for path in ("/usr", "/etc", "/var/lib/dpkg")]
    names += [mount for mount in mounts("/sbin:/sbin:ro") if not mount.startswith("/usr:")]
    words = ["podman", "build", "--network", "host", "--tag", tag, *more]
    for name in dict.fromkeys([*names, *_pip_folders()]):
        words += ["--volume", name]
    for name, value in os.environ.items():
        if name.startswith("PIP_"):
            words += ["--env", f"{name}={value}"]
    done = subprocess.run([*words, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _pip_folders() -> list[str]:
    """Folders of this machine from which pip is told to take packages."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {Path(*Path(path).parts[:3]) for path in re.findall(r"(?<![/\w])/[\w./-]+", said)}
    found |= {Path(*Path(path).parts[:3]) for path in re.findall(r"file://(/[\w./-]+)", said)}
    return [
        f"{path}:{path}:ro" for path in sorted(found) if path.is_dir() and path.parts[1] != "etc"
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_for_metaworld_is_built_and_its_trials_are_those_of_here(
    podman: Path, tmp_path: Path
) -> None:
    pytest.importorskip("metaworld")
    base = tmp_path / "base"
    base.mkdir()
    (base / "Dockerfile").write_text(_BASE)
    _build(BASE, base)
    assert main(["image", "metaworld", "--out", str(tmp_path / "metaworld")]) == 0
    _build("localhost/hocket-metaworld:1", tmp_path / "metaworld", "--build-arg", f"BASE={BASE}")
    found = []
    for runtime, config in (
        ("local", {}),
        ("podman:localhost/hocket-metaworld:1", {"python": PYTHON, "mounts": mounts()}),
    ):
        report = hocket.evaluate(
            env="metaworld:reach-v3",
            policy="reference",
            episodes=2,
            max_steps=20,
            lanes=1,
            runtime=runtime,
            runtime_config=config,
        )
        assert report.overall.errors == 0
        found.append(sorted((e.trial.id, e.total_reward, e.steps) for e in report.episodes))
    assert found[0] == found[1]
