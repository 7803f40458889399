"""Evaluations, training, cards and sites name the same things that their numbers depend on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import UsageError
from hocket.records.program import changes
from hocket.records.provenance import provenance
from hocket.records.run_file import load_about
from hocket.runs.checks.card import write_card
from hocket.runs.config import EvalConfig

TOY: dict[str, Any] = {"env": "toy:count", "policy": "random", "episodes": 1, "lanes": 1}
PACKAGES = (
    *("transformers", "diffusers", "accelerate", "libero", "gymnasium-robotics", "openpi-client"),
    *("sapien", "jaxlib", "isaaclab", "av", "torch", "mujoco"),
)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> None:
    """Let this interpreter have all packages in this version, as far as it is asked for one."""
    for name in PACKAGES:
        told = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        told.mkdir(parents=True)
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_sites_with_other_packages_are_refused_as_cards_would_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvalConfig.from_plain(TOY)
    install(monkeypatch, tmp_path / "one", "1.0")
    first = provenance(config)
    install(monkeypatch, tmp_path / "two", "2.0")
    found = changes(first, provenance(config))
    assert sorted(found) == [f"{name}: 1.0 before, 2.0 now" for name in sorted(PACKAGES)]


def test_a_card_names_every_package_that_may_change_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", "1.0")
    hocket.evaluate(**TOY, video="none", out=tmp_path / "run")
    write_card(tmp_path / "run", tmp_path / "card")
    told = json.loads((tmp_path / "card" / "card.json").read_text())["provenance"]
    assert {told["versions"].get(name) for name in PACKAGES} == {"1.0"}
    assert told["hardware"]["cpu"]


def test_training_names_what_its_weights_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from hocket.train.learner import checkpoint
    from train.test_training import run

    install(monkeypatch, tmp_path / "site", "1.0")
    (tmp_path / "rewarding.py").write_text(
        "def effort(episode):\n    return 0.0 * episode.rewards\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = run(tmp_path, steps=20, batch=2, reward="success,0.1*rewarding:effort")
    about = load_about(trained.run)
    assert {about["versions"].get(name) for name in PACKAGES} == {"1.0"}
    assert about["hardware"]["cpu"]
    assert set(about["code"]) >= {"support.point_env", "rewarding"}
    assert len(about["code"]["rewarding"]["sha256"]) == 64
    assert about["settings"]["actor"]["hidden"] == [32, 32]
    newest = str(checkpoint.latest(trained.run))
    again = run(tmp_path, "again", steps=20, batch=2, policy=newest, policy_config={})
    assert "weights.safetensors" in " ".join(load_about(again.run)["files"])


def test_code_is_found_where_its_name_says_without_being_imported(tmp_path: Path) -> None:
    from hocket.records.provenance import sources

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit\n")
    (tmp_path / "mine" / "envs.py").write_text("raise SystemExit\n")
    alone = tmp_path / "alone.py"
    alone.write_text("raise SystemExit\n")
    config = EvalConfig(
        env=("mine.envs:Env",),
        policy=f"{alone}:Policy",
        env_config={"model": "mine:Model", "names": ["torch:mine.envs:Net"]},
    )
    sys.path.insert(0, str(tmp_path))
    try:
        found = sources(config)
    finally:
        sys.path.remove(str(tmp_path))
    assert found == {
        "mine.envs": tmp_path / "mine" / "envs.py",
        str(alone): alone,
        "mine": tmp_path / "mine" / "__init__.py",
    }


def test_training_goes_on_only_as_the_program_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from train.test_training import run

    module = f"rewards_{tmp_path.name.replace('-', '_')}"
    source = tmp_path / f"{module}.py"
    source.write_text("def effort(episode):\n    return 0.0 * episode.rewards\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: dict[str, Any] = {"batch": 2, "reward": f"success,0.1*{module}:effort"}
    first = load_about(run(tmp_path, steps=20, **settings).run)
    source.write_text(source.read_text() + "# edited\n")
    with pytest.raises(UsageError, match=f"code of {module}: .* now.*--allow-changes"):
        run(tmp_path, steps=40, resume=True, **settings)
    assert load_about(tmp_path / "run") == first
    trained = run(tmp_path, steps=40, resume=True, allow_changes=True, **settings)
    about = load_about(trained.run)
    assert about["code"] == first["code"]
    (leg,) = about["legs"]
    assert f"code of {module}" in " ".join(leg["differs"])
    assert leg["env_steps"] >= 20
    run(tmp_path, steps=60, resume=True, **settings)  # as it was gone on with
