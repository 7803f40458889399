"""Rows that were cut or changed on the disk are told, never read as other numbers, and cost only
what needs them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import hocket
from hocket.cli import main
from hocket.errors import DamagedSegmentError
from hocket.exports import export_run
from hocket.records.chunks import load_chunks
from hocket.records.ledger.ledger import Ledger
from hocket.records.parquet import find_damage, read_table
from hocket.records.step_rows import load_steps
from hocket.runs.checks.verify import verify
from hocket.runs.demonstrations.chosen import ExportConfig
from support.exported_runs import run_toy

LOADS: dict[str, Callable[[Path], object]] = {
    "steps": load_steps,
    "chunks": load_chunks,
    "states": lambda run: list(read_table(run, "states", ["trial", "states"])),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_toy(tmp_path_factory.mktemp("sound") / "run", "count", episodes=2)


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def segment(run: Path, table: str) -> Path:
    return sorted((run / table).glob("*.parquet"))[0]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("table", LOADS)
def test_no_flipped_bit_and_no_cut_goes_unseen(run: Path, table: str) -> None:
    path, load = segment(run, table), LOADS[table]
    whole = path.read_bytes()
    load(run)
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        flip(path, at)
        with pytest.raises(DamagedSegmentError, match=f"{path.name}' is damaged"):
            load(run)
        path.write_bytes(whole)
    for length in (0, 10, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedSegmentError, match="Restore it from a copy"):
            load(run)
    path.write_bytes(whole)
    load(run)
    assert find_damage(run) == []


def test_damaged_steps_cost_datasets_and_replays_alone(
    run: Path, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(segment(run, "steps"), 100)
    assert main(["report", str(run)]) == 0
    assert "warning: " in (told := capsys.readouterr().err)
    assert "of the table 'steps'" in told
    assert main(["compare", str(run), str(sound)]) == 0
    with pytest.raises(DamagedSegmentError):
        verify(run, "count/3")
    for form in ("lerobot", "hdf5"):
        assert main(["export", str(run), "--to", form, "--out", str(tmp_path / form)]) != 0
        assert "is damaged" in capsys.readouterr().err
        assert not (tmp_path / form).exists()


def test_damaged_chunks_cost_the_timing_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(run, "chunks").write_bytes(b"")
    assert main(["report", str(run)]) == 0
    assert "of the table 'chunks'" in capsys.readouterr().err
    page = (run / "report.html").read_text()
    assert "Where the time went is not known." in page
    export_run(run, "hdf5", tmp_path / "file.hdf5", ExportConfig(images=False, workers=1))
    assert main(["export", str(run), "--to", "perfetto", "--out", str(tmp_path / "p.json")]) != 0


@pytest.mark.parametrize("table", ["steps", "chunks"])
def test_a_run_that_goes_on_leaves_a_damaged_segment_as_it_is(run: Path, table: str) -> None:
    path = segment(run, table)
    kept = path.read_bytes()[:-20]
    path.write_bytes(kept)
    with pytest.raises(DamagedSegmentError, match="is damaged"):
        LOADS[table](run)
    with Ledger.open(run) as ledger:
        first = ledger.trials()[0]
        ledger.add_trials([first._replace(seed=100 + i) for i in range(4)])
    assert hocket.resume(run).complete
    assert path.read_bytes() == kept
    (told,) = find_damage(run)
    assert path.name in told
