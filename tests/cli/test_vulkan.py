"""What is said of Vulkan devices, and lavapipe beside a venv."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import HocketError
from hocket.runs.checks import doctor
from hocket.system.venvs import build, vulkan
from hocket.system.venvs.table import VENVS
from support.parts import needs_venv, python_of

LAVAPIPE = '[["llvmpipe (LLVM 15)", "Mesa {}"]]'


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What programs say, by the first of their words, or what they end with."""
    said: dict[str, str] = {}

    def run(command: list[str], **how: Any) -> str:
        del how
        answer = said[Path(command[0]).name if "-c" not in command else command[2][:13]]
        if answer.startswith("raise "):
            raise HocketError(answer[6:])
        return answer

    monkeypatch.setattr(vulkan, "_run", run)
    monkeypatch.setattr(vulkan, "_loader", lambda venv: "libvulkan.so.1")
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    return said


def test_a_mesa_that_is_too_old_is_named_with_the_one_that_will_do(answers: dict[str, str]) -> None:
    answers["\nimport ctype"] = LAVAPIPE.format("22.3.6")
    found = vulkan.probe()
    assert found.devices == ("llvmpipe (LLVM 15), Mesa 22.3.6",)
    assert "24.3" in found.reason
    answers["\nimport ctype"] = LAVAPIPE.format("25.0.7-2~bpo12+1 (LLVM 15.0.6)")
    assert not vulkan.probe().reason


def test_sapien_has_the_last_word(answers: dict[str, str]) -> None:
    answers["\nimport ctype"] = LAVAPIPE.format("25.0.7")
    answers["import sapien"] = "raise RuntimeError: failed to find a rendering device"
    assert "failed to find a rendering device" in vulkan.probe(Path("venv")).reason


def test_without_a_loader_or_a_driver_it_is_said_what_is_missing(
    answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers["\nimport ctype"] = "[]"
    assert "mesa-vulkan-drivers" in vulkan.probe().reason
    monkeypatch.setattr(vulkan, "_loader", lambda venv: None)
    assert "libvulkan1" in vulkan.probe().reason


def test_drivers_that_the_user_chose_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / vulkan.FOLDER).mkdir()
    (tmp_path / vulkan.FOLDER / "lvp.json").write_text("{}")
    monkeypatch.setenv("VK_ICD_FILENAMES", "mine.json")
    vulkan.use(str(tmp_path))
    assert os.environ["VK_ICD_FILENAMES"] == "mine.json"
    monkeypatch.delenv("VK_ICD_FILENAMES")
    with pytest.raises(HocketError, match="cannot be loaded"):
        vulkan.use(str(tmp_path))


def test_a_venv_that_draws_with_vulkan_gets_a_device_where_none_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[Path] = []
    monkeypatch.setattr(build, "_do", lambda name, command: None)
    monkeypatch.setattr(vulkan, "unpack", unpacked.append)
    for reason, name in (("", "one"), ("too old", "two")):
        monkeypatch.setitem(VENVS, name, VENVS["maniskill"])  # type: ignore[arg-type]
        monkeypatch.setattr(vulkan, "probe", lambda venv, why=reason: vulkan.Found(reason=why))
        (tmp_path / name).mkdir()
        build.build(name, tmp_path)
    assert unpacked == [tmp_path / "two"]


def test_doctor_says_which_device_there_is_and_why_it_will_not_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = vulkan.Found(devices=("llvmpipe, Mesa 22.3.6",), reason="Mesa is too old for SAPIEN")
    monkeypatch.setattr(vulkan, "probe", lambda venv: old)
    monkeypatch.setattr(doctor.gl, "probe", lambda backend: doctor.gl.GlProbe(devices=()))
    (found,) = [each for each in doctor.rendering_findings() if each.name == "vulkan"]
    assert found.state == "missing"
    assert found.detail == "llvmpipe, Mesa 22.3.6: Mesa is too old for SAPIEN"
    assert "hocket venv maniskill" in found.advice


@pytest.mark.slow
@needs_venv("maniskill")
def test_the_venv_that_was_built_renders() -> None:
    venv = python_of("maniskill").parents[1]
    found = vulkan.probe(venv)
    assert found.devices
    assert not found.reason
