"""Runs that the tests of all formats share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import exported_runs


@pytest.fixture(scope="session")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cameras, states of the simulator, and no picture kept."""
    return exported_runs.run_toy(tmp_path_factory.mktemp("image") / "run")


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One camera, which cannot be shown again: every picture was kept."""
    folder = tmp_path_factory.mktemp("pixels") / "run"
    return exported_runs.run_toy(folder, "pixels", record="full", episodes=3)
