import errno
import json
import os

import pytest

from hocket import cli
from hocket.core import plugins
from hocket.runs.checks import doctor


def test_every_extra_of_a_built_in_adapter_is_looked_for() -> None:
    named = {finding.name for finding in doctor.extra_findings()}
    wanted = {
        builtin.extra
        for table in plugins.builtin().values()
        for builtin in table.values()
        if builtin.extra
    }
    assert named == wanted


def test_a_missing_extra_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = plugins.Builtin("x:y", "dancing", ("no_such_module_anywhere",))
    monkeypatch.setattr(plugins, "builtin", lambda: {"envs": {"x": absent}})
    (finding,) = doctor.extra_findings()
    assert (finding.state, finding.advice) == ("missing", "pip install 'hocket[dancing]'")


def test_shared_memory_is_tried_as_workers_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> str:
        return {f.name: f.state for f in doctor.machine_findings()}["shared memory"]

    assert found() == "ok"

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert found() == "slow"


def test_videos_can_be_written_here() -> None:
    states = {finding.name: finding.state for finding in doctor.codec_findings()}
    assert states["libx264"] == "ok"


def test_all_findings_and_names_are_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    topics = {finding["topic"] for finding in document["findings"]}
    assert topics == {"machine", "runtimes", "rendering", "extras", "codecs"}
    assert "metaworld" in document["registry"]["envs"]
    for finding in document["findings"]:
        assert finding["state"] == "ok" or finding["advice"] or finding["detail"]


def test_every_runtime_is_listed_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = {finding.name: finding for finding in doctor.runtime_findings()}
    assert set(found) == set(plugins.names("runtimes"))
    assert found["local"].state == "ok"
    for name in ("docker", "podman", "ssh"):
        assert found[name].state == "missing"
        assert "There is no command" in found[name].detail
        assert "apt-get install" in found[name].advice
