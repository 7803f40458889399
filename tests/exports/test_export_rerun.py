"""Recordings for Rerun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hocket.errors import MissingExtraError
from support.exported_runs import episodes_of, export

try:
    import rerun  # noqa: F401
except ImportError:
    HAS_RERUN = False
else:
    HAS_RERUN = True


@pytest.mark.skipif(HAS_RERUN, reason="rerun-sdk is installed")
def test_without_the_package_it_is_told_how_to_get_it(image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"hocket\[rerun\]"):
        export(image_run, "rerun", tmp_path / "run.rrd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAS_RERUN, reason="rerun-sdk is not installed: pip install hocket[rerun]")
def test_reruns_own_tool_finds_every_row(image_run: Path, tmp_path: Path) -> None:
    export(image_run, "rerun", tmp_path / "run.rrd")
    episodes = episodes_of(image_run)
    steps = sum(episode.steps for episode in episodes)
    done = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "print", "-v", str(tmp_path / "run.rrd")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = done.stdout
    for path in ("/action", "/reward", "/observation/state", "/camera/image", "/episode"):
        assert path in told
    stats = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "stats", str(tmp_path / "run.rrd")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout
    # Actions and rewards of each step; a state and two pictures of each and of the reset; two
    # words for each episode; and two rows that tell of the recording.
    rows = 2 * steps + 3 * (steps + len(episodes)) + 2 * len(episodes) + 2
    assert f"num_rows = {rows:,}".replace(",", " ") in stats.replace("\u2009", " ")
