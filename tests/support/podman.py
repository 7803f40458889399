"""Podman with images and containers of its own, for tests: an image whose files are this machine's.

The image is imported from a bare root file system, without a registry; the interpreter, the
libraries and the simulators of this machine are mounted into it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.workers.containers.runtime import ContainerConfig, PodmanRuntime
from support.parts import missing

IMAGE = "localhost/hocket-test:1"
_CONF = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_FOLDERS = ("usr", "lib", "lib64", "bin", "tmp", "run", "opt", "proc", "sys", "dev", "etc")
_FOLDERS += ("sbin", "root", "var", "var/lib", "var/lib/dpkg", "var/lib/apt", "var/lib/apt/lists")
_FOLDERS += ("var/cache", "var/cache/apt", "var/cache/apt/archives", "var/log")


def mounts(*extra: str) -> tuple[str, ...]:
    """What the bare image needs of this machine."""
    found = [Path("/usr"), Path("/lib"), Path("/lib64"), Path("/bin")]
    found += [Path(sys.prefix), Path(sys.base_prefix)]
    found = [path for path in found if path.exists()]
    return (*dict.fromkeys(f"{path}:{path}:ro" for path in found), *extra)


def config(**changes: object) -> ContainerConfig:
    settings = {"python": sys.executable, "mounts": mounts(), **changes}
    return ContainerConfig(**settings)  # type: ignore[arg-type]


def make_runtime(**changes: object) -> PodmanRuntime:
    return PodmanRuntime(IMAGE, config(**changes))


def containers() -> list[str]:
    """Names of all containers that there are."""
    words = ["podman", "ps", "--all", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


@contextlib.contextmanager
def image_here(folder: Path) -> Iterator[str]:
    """Podman with its own files in a folder, and the image in it; gives why it does not work here,
    empty where it does."""
    (folder / "containers.conf").write_text(_CONF)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        archive = folder / "root.tar"
        with tarfile.open(archive, "w") as tar:
            for name in _FOLDERS:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(entry)
        words = ["podman", "import", str(archive), IMAGE]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            words = ["podman", "run", "--rm", "--network", "none"]
            words += [word for mount in mounts() for word in ("--volume", mount)]
            words += [IMAGE, sys.executable, "-c", ""]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        try:
            yield done.stderr.strip()[-300:] if done.returncode else ""
        finally:
            for words in (["podman", "rm"], ["podman", "rmi"]):
                subprocess.run([*words, "--all", "--force"], capture_output=True, check=False)
            # Podman leaves its storage mounted.
            subprocess.run(["umount", str(folder / "root" / "overlay")], check=False)


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for Podman's own files, with the image in it; skips where there is no Podman that
    works."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip(missing("podman", "as root, apt-get install podman runc"))
    folder = tmp_path_factory.mktemp("podman")
    with image_here(folder) as fault:
        if fault:
            pytest.skip(missing("podman", f"it does not work here: {fault}"))
        yield folder
