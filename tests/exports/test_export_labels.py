"""Labels travel with the episodes that they are of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import pytest

from hocket.records.labels import add_label
from support.exported_runs import episodes_of, export

LABEL = "dropped it, twice"


@pytest.fixture
def labelled(image_run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(image_run, folder)
    add_label(folder, episodes_of(folder)[1].trial, 0, LABEL)
    return folder


def test_every_format_has_the_label_with_its_episode(labelled: Path, tmp_path: Path) -> None:
    trial = episodes_of(labelled)[1].trial.id
    export(labelled, "eval_info", tmp_path / "info.json")
    assert json.loads((tmp_path / "info.json").read_text())["hocket"]["labels"] == {trial: LABEL}
    export(labelled, "perfetto", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = {e["args"]["trial"]: e["args"].get("label") for e in events if e.get("cat") == "episode"}
    assert {one: label for one, label in told.items() if label} == {trial: LABEL}
    export(labelled, "hdf5", tmp_path / "demos.hdf5", images=False)
    with h5py.File(tmp_path / "demos.hdf5") as file:
        found = {demo.attrs["trial"]: demo.attrs.get("label") for demo in file["data"].values()}
    assert {one: label for one, label in found.items() if label} == {trial: LABEL}
    export(labelled, "lerobot", tmp_path / "dataset", images=False, fps=10)
    line = (tmp_path / "dataset" / "meta" / "labels.jsonl").read_text()
    assert json.loads(line) == {"episode_index": 1, "label": LABEL}
