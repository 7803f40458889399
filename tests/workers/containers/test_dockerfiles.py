"""The Dockerfiles that hocket writes, built without a registry of images: on files of here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.cli import main
from support.libero_venv import DATA, NEEDS_LIBERO
from support.libero_venv import PYTHON as LIBERO_PYTHON
from support.parts import ROOT
from support.podman import IMAGE, mounts, podman

__all__ = ["podman"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KERNELS = tuple(f"{k}={v}" for k, v in os.environ.items() if k.startswith("OPENBLAS_"))
"""Whatever tells OpenBLAS here which kernels to use: they decide the last bits of a norm."""
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


@pytest.fixture(scope="module")
def base(podman: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with an interpreter of its own, as the Dockerfiles begin with."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "Dockerfile").write_text(_BASE)
    _build(BASE, folder)
    return BASE


def _image(name: str, base: str, folder: Path) -> str:
    """The image of the Dockerfile that hocket writes for a simulator."""
    assert main(["image", name, "--out", str(folder / name)]) == 0
    tag = f"localhost/hocket-{name}:1"
    _build(tag, folder / name, "--build-arg", f"BASE={base}")
    return tag


class Witness:
    """Moves the same way each time, and remembers all that it was shown."""

    spec = hocket.PolicySpec(chunk_length=4, action_size=7)

    def __init__(self) -> None:
        self.seen: set[tuple[tuple[str, str], ...]] = set()

    def infer(self, batch: Any) -> Any:
        names = sorted(batch.arrays)
        rows = len(batch.arrays[names[0]])
        for row in range(rows):
            shown = [(name, np.ascontiguousarray(batch.arrays[name][row])) for name in names]
            self.seen.add(tuple((name, hashlib.sha256(it).hexdigest()) for name, it in shown))
        chunk = np.random.default_rng(5).uniform(-1, 1, (4, 7))
        return np.repeat(chunk[None], rows, axis=0)

    def close(self) -> None: ...


def test_the_image_for_metaworld_is_built_and_its_trials_are_those_of_here(
    base: str, tmp_path: Path
) -> None:
    pytest.importorskip("metaworld")
    image = _image("metaworld", base, tmp_path)
    found = []
    for settings in (
        {"runtime": "local"},
        {
            "runtime": f"podman:{image}",
            "runtime_config": {"python": PYTHON, "mounts": mounts(), "env": KERNELS},
        },
    ):
        report = hocket.evaluate(
            env="metaworld:reach-v3",
            policy="reference",
            episodes=2,
            max_steps=20,
            lanes=1,
            **settings,
        )
        assert report.overall.errors == 0
        found.append(sorted((e.trial.id, e.total_reward, e.steps) for e in report.episodes))
    assert found[0] == found[1]


def test_the_image_of_hocket_itself_is_built_from_a_wheel_and_evaluates(
    base: str, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_bytes((ROOT / "docker" / "hocket" / "Dockerfile").read_bytes())
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(context)]
    subprocess.run([*wheel, str(ROOT)], check=True, capture_output=True)
    _build("localhost/hocket:1", context, "--build-arg", f"BASE={base}")
    words = ["podman", "run", "--rm", "--network", "none"]
    for mount in mounts():
        words += ["--volume", mount]
    task = ("--env", "metaworld:reach-v3", "--policy", "reference", "--episodes", "2")
    here = ("--out", "/tmp/run", "--json")
    done = subprocess.run(
        [*words, "localhost/hocket:1", "eval", *task, *here],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["overall"]["rate"] == 1.0


class TestLibero:
    pytestmark = NEEDS_LIBERO

    def test_the_image_for_libero_is_built_and_a_trial_is_that_of_the_interpreter_of_here(
        self, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOCKET_LIBERO_DATA", str(DATA))
        there = {
            "python": PYTHON,
            "mounts": mounts(f"{DATA}:/data:ro"),
            "env": ("HOCKET_LIBERO_DATA=/data", *KERNELS),
        }
        image = _image("libero", base, tmp_path)
        found = []
        for settings in (
            {"env_python": str(LIBERO_PYTHON)},
            {"runtime": f"podman:{image}", "runtime_config": there},
        ):
            witness = Witness()
            report = hocket.evaluate(
                env="libero:turn_on_the_stove",
                policy=witness,
                episodes=1,
                max_steps=12,
                lanes=1,
                **settings,
            )
            assert report.overall.errors == 0
            (episode,) = report.episodes
            found.append((episode.total_reward, episode.steps, witness.seen))
        assert len(found[0][2]) == 3  # What each chunk began with: numbers and two pictures.
        assert found[0] == found[1]
