"""YAML of strangers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hocket.adapters.policies.mapping import open_mapping
from hocket.errors import ConfigError
from hocket.records.run_file import RUN_FILE, load_about, load_run
from hocket.system.bounded_yaml import load_yaml

LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
STRANGE = {
    "aliases of aliases": LAUGHS,
    "a list in itself": "a: &a [1, *a]\n",
    "a map in itself": "a: &a {b: *a}\n",
    "deep": "a: " + "[" * 200_000,
    "digits": "a: " + "1" * 5000,
    "a date": "a: 2020-99-99\n",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_yaml_that_no_person_writes_is_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)
    (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_run(tmp_path)
    assert load_about(tmp_path) == {}


def test_aliases_that_people_write_are_read() -> None:
    text = "common: &c {lanes: 2, env: [a, b]}\nruns: {one: {<<: *c}, two: *c}\n"
    assert load_yaml(text)["runs"]["one"] == {"lanes": 2, "env": ["a", "b"]}
    assert len(load_yaml("[" + ", ".join(["x"] * 200_000) + "]")) == 200_000


def test_a_file_that_holds_no_text_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"image: \xff\xfe")
    with pytest.raises(ConfigError, match=r"The mapping '.*mine.yaml' cannot be read: 'utf-8'"):
        open_mapping(str(file))
