"""Checkpoints by their id, from a stand-in of the hub, through the hub's own library."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.adapters import hub
from hocket.errors import MissingExtraError
from support.hub_stand_in import COMMIT, serve_model
from support.parts import ROOT, needs_venv, python_of
from support.processes import DEADLINE_S

PYTHON = python_of("lerobot")
NEEDS_LIBRARY = [
    pytest.mark.slow,
    needs_venv("lerobot"),
]
FETCH = """
import sys
from hocket.adapters.policies.lerobot.folder import find_folder
from hocket.errors import HocketError
try:
    print(find_folder(sys.argv[1]))
except HocketError as exc:
    print("refused:", exc)
"""
FILES = {"config.json": json.dumps({"type": "act"}).encode(), "evil.pkl": b"no", "a.bin": b"no"}


def fetch(
    home: Path, name: str, endpoint: str, *words: str, code: str = FETCH, **variables: str
) -> str:
    done = subprocess.run(
        [str(PYTHON), "-c", code, name, *words],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}",
            "HF_HOME": str(home),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "name", ["user/model", "user/model@main", "a.b/c-d_e@v1.0", "u/m@refs/pr/1"]
)
def test_ids_are_told_from_paths(name: str) -> None:
    assert hub.is_id(name)
    assert not hub.is_id(f"/{name}")
    assert not hub.is_id(f"some/{name}")


def test_what_was_fetched_is_told_by_revision_and_digests(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"large").hexdigest()
    folder = tmp_path / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (tmp_path / digest).write_bytes(b"not read")
    (folder / "model.safetensors").symlink_to(tmp_path / digest)
    (folder / "config.json").write_text("{}")
    assert hub.origin("user/model@main", folder) == {
        "repository": "user/model",
        "revision": COMMIT,
        "config.json": hashlib.sha256(b"{}").hexdigest(),
        "model.safetensors": digest,
    }


def test_without_the_library_its_installation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hocket\[hub\]'"):
        hub.fetch("user/model")
    with pytest.raises(MissingExtraError, match="To push user/data takes"):
        hub.Repository("user/data")


class TestWithTheLibrary:
    pytestmark = NEEDS_LIBRARY

    def test_a_checkpoint_is_fetched_once_without_its_pickles(self, tmp_path: Path) -> None:
        with serve_model("user/model", FILES) as (endpoint, asked):
            folder = Path(fetch(tmp_path, "user/model@main", endpoint))
            assert folder.name == COMMIT
            assert [path.name for path in folder.iterdir()] == ["config.json"]
            assert not any("evil" in path or "a.bin" in path for path in asked)
        again = fetch(tmp_path, "user/model@main", endpoint, HF_HUB_OFFLINE="1")
        assert Path(again) == folder, "from the cache, with nobody there to ask"

    def test_a_second_checkpoint_is_fetched_by_the_same_process(self, tmp_path: Path) -> None:
        again = "import shutil; print(find_folder(sys.argv[1])); shutil.rmtree(sys.argv[2])"
        with serve_model("user/model", FILES) as (endpoint, _):
            code = FETCH + again + FETCH
            found = fetch(tmp_path, "user/model@main", endpoint, str(tmp_path), code=code)
        assert found.endswith(COMMIT)

    def test_what_cannot_be_fetched_is_told(self, tmp_path: Path) -> None:
        with serve_model("user/model", FILES) as (endpoint, _):
            assert "has no 'user/other' that you may read" in fetch(
                tmp_path, "user/other", endpoint
            )
        gone = fetch(tmp_path, "user/model", endpoint)
        assert f"cannot be fetched: {endpoint} does not answer" in gone
        offline = fetch(tmp_path, "user/model", endpoint, HF_HUB_OFFLINE="1")
        assert "HF_HUB_OFFLINE forbids" in offline
