"""What holds for every format."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from hocket.cli import main
from hocket.core.data import Array, Outcome
from hocket.errors import MissingExtraError, RunFolderError, UnknownNameError, UsageError
from hocket.exports import FORMATS
from hocket.runs.demonstrations.chosen import Choice
from support.changed_states import change_states
from support.exported_runs import EPISODES, episodes_of, export, run_toy


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_written_over(image_run: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UsageError, match="exists already"):
        export(image_run, form, out)
    assert list(out.iterdir()) == []


def test_an_unknown_format_is_told_with_the_nearest(image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'perfetto'"):
        export(image_run, "perfeto", tmp_path / "out")


def test_an_unknown_outcome_or_task_is_told_with_the_nearest(
    image_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="Did you mean 'success'"):
        export(image_run, "eval_info", tmp_path / "a", choice=Choice(outcomes=("succes",)))
    with pytest.raises(UnknownNameError, match="Did you mean 'image'"):
        export(image_run, "eval_info", tmp_path / "a", choice=Choice(tasks=("imag",)))


def test_a_choice_that_leaves_nothing_is_refused(image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to export"):
        export(image_run, "eval_info", tmp_path / "a", choice=Choice(outcomes=("error",)))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="There is no run"):
        export(tmp_path, "eval_info", tmp_path / "out.json")


def test_an_unfinished_run_is_exported_with_a_note(image_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(image_run, folder)
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute(
            "INSERT INTO trials (suite, task, seed, repeat) VALUES ('toy:image', 'image', 99, 0)"
        )
    ledger.close()
    told = export(folder, "eval_info", tmp_path / "out.json")
    assert f"1 of its {EPISODES + 1} trials" in told.notes[0]
    assert json.loads((tmp_path / "out.json").read_text())["overall"]["n_episodes"] == EPISODES


def test_a_failed_export_leaves_nothing(image_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"camera 'observation/nowhere'\. Did you mean"):
        export(image_run, "lerobot", tmp_path / "out", cameras=("observation/nowhere",))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_no_obstacle(image_run: Path, tmp_path: Path) -> None:
    for name in (".out.tmp", ".out.scratch.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("half")
    export(image_run, "lerobot", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not (tmp_path / "out" / "half").exists()


def test_a_run_without_steps_has_nothing_to_learn_from(tmp_path: Path) -> None:
    folder = run_toy(tmp_path / "run", "count", record="none", episodes=2)
    with pytest.raises(RunFolderError, match="were not recorded"):
        export(folder, "lerobot", tmp_path / "out")
    export(folder, "eval_info", tmp_path / "info.json")


def test_an_env_that_changed_since_is_found_out(image_run: Path, tmp_path: Path) -> None:
    """Pictures of something that never was would be worse than none."""

    def push(states: Array) -> None:
        states[:, 0] += 1 << 20

    folder = tmp_path / "run"
    shutil.copytree(image_run, folder)
    change_states(folder, episodes_of(image_run)[0].trial.id, push)
    with pytest.raises(RunFolderError, match="not what was recorded"):
        export(folder, "hdf5", tmp_path / "out.hdf5")


def test_the_command_line_exports_and_says_so(
    image_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "info.json"
    arguments = ["export", str(image_run), "--to", "eval_info", "--out", str(out), "--successes"]
    assert main(arguments) == 0
    wins = [e for e in episodes_of(image_run) if e.outcome is Outcome.SUCCESS]
    assert f"{len(wins)} episodes" in capsys.readouterr().out
    assert json.loads(out.read_text())["overall"]["pc_success"] == 100
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_missing_package_is_told_with_how_to_get_it(
    image_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"hocket\[hdf5\]"):
        export(image_run, "hdf5", tmp_path / "out.hdf5")


def test_a_place_that_cannot_be_written_is_told(image_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"The export to .* failed"):
        export(image_run, "eval_info", tmp_path / "file" / "info.json")
