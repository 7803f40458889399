from pathlib import Path

import pytest

from hocket.core.plugins import share_settings
from hocket.errors import ConfigError
from hocket.records import run_file
from hocket.records.provenance import this_process, versions


def test_what_was_saved_is_loaded_without_the_about_section(tmp_path: Path) -> None:
    plain = {"env": ["toy"], "policy": "scripted", "ensemble": None}
    run_file.save_run(tmp_path, plain, about=this_process())
    assert run_file.load_run(tmp_path / "run.yaml") == plain
    assert run_file.load_run(tmp_path) == plain


def test_the_about_section_names_versions_and_hardware() -> None:
    assert versions()["hocket"]
    assert this_process()["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("env: [toy\n", "not valid YAML"),
        ("- a\n- b\n", "must be a mapping"),
        ("seed: 1\nseed: 2\n", "'seed' stands there twice"),
        ("env: !!python/object:os.system x\n", "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused_with_its_reason(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        run_file.load_run(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        run_file.load_run(tmp_path / "nowhere.yaml")


def make_small(size: int = 3, colour: str = "red") -> None: ...


def make_large(size: int = 9, weight: float = 1.0) -> None: ...


SMALL, LARGE = f"{__name__}:make_small", f"{__name__}:make_large"


def test_each_adapter_takes_the_settings_that_it_has() -> None:
    shares = share_settings("envs", [SMALL, LARGE], {"size": 5, "colour": "blue"})
    assert shares == {SMALL: {"size": 5, "colour": "blue"}, LARGE: {"size": 5}}


def test_a_setting_that_no_adapter_has_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'colour'"):
        share_settings("envs", [SMALL, LARGE], {"color": "blue"})


def test_a_number_with_an_exponent_and_no_point_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("lr: 3e-4\nname: 3e4th\n")
    assert run_file.load_run(tmp_path) == {"lr": 3e-4, "name": "3e4th"}


def test_folder_of_a_long_name_has_a_name_that_a_file_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_file.new_folder(None, ["\U00020000" * 100], "policy").mkdir(parents=True)
