"""`hocket image` writes the Dockerfiles that the repository keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["metaworld", "libero"])
def test_the_dockerfile_is_the_one_in_the_repository(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    assert main(["image", name, "--out", str(folder)]) == 0
    assert (folder / "Dockerfile").read_text() == (
        ROOT / "docker" / name / "Dockerfile"
    ).read_text()
    assert f"--runtime.dockerfile {folder}" in capsys.readouterr().out
    (folder / "Dockerfile").write_text("FROM mine\n")
    assert main(["image", name, "--out", str(folder)]) == 1
    assert (folder / "Dockerfile").read_text() == "FROM mine\n"
