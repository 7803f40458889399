"""An export is uploaded to a stand-in of the hub, through the hub's own library."""

import os
import subprocess
from pathlib import Path

import pytest

from support.commands import command
from support.hub_stand_in import COMMIT, take_repository
from support.processes import DEADLINE_S

TOKEN = "hf_" + "x" * 34


def push(
    folder: Path, run: Path, endpoint: str, *, token: str = TOKEN, to: str = "lerobot"
) -> subprocess.CompletedProcess[str]:
    flags = ("--to", to, "--out", "dataset", "--push", "user/data", "--no-images")
    return subprocess.run(
        command("export", str(run), *flags),
        cwd=folder,
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.slow
class TestPush:
    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("huggingface_hub")

    def test_dataset_is_uploaded_whole_and_tagged_with_its_version(
        self, image_run: Path, tmp_path: Path
    ) -> None:
        with take_repository("user/data", TOKEN) as pushed:
            done = push(tmp_path, image_run, pushed.endpoint)
        assert done.returncode == 0, done.stderr
        assert f"{pushed.endpoint}/datasets/user/data: pushed" in done.stdout
        written = tmp_path / "dataset"
        here = {str(p.relative_to(written)): p.read_bytes() for p in written.rglob("*.*")}
        assert pushed.files == here
        assert pushed.made == ["user/data"]
        assert pushed.tags == {"v3.0": COMMIT}, "LeRobot looks for the tag of its format"

    def test_what_cannot_be_pushed_is_told_before_anything_is_exported(
        self, image_run: Path, tmp_path: Path
    ) -> None:
        with take_repository("user/data", TOKEN) as pushed:
            refused = push(tmp_path, image_run, pushed.endpoint, token="hf_other")
        assert refused.returncode == 2
        assert "does not let you (401): give it your token" in refused.stderr
        gone = push(tmp_path, image_run, pushed.endpoint)
        assert gone.returncode == 2
        assert f"cannot be pushed: {pushed.endpoint} does not answer as it should" in gone.stderr
        assert "Traceback" not in refused.stderr + gone.stderr
        assert not (tmp_path / "dataset").exists()
        other = push(tmp_path, image_run, pushed.endpoint, to="hdf5")
        assert "--push is for --to lerobot" in other.stderr
