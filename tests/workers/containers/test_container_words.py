"""What containers are told and called, without any container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hocket
from hocket.core import plugins
from hocket.core.contracts.runtime import WorkerSpec
from hocket.core.data import Ref
from hocket.errors import ConfigError, UnknownNameError, UsageError, WorkerFailed
from hocket.workers.containers.command import Command, _is_stray, container_name, context_hash
from hocket.workers.containers.runtime import ContainerConfig, DockerRuntime, PodmanRuntime
from hocket.workers.fleet import Fleet, FleetConfig


def words(config: ContainerConfig, *, is_podman: bool = True) -> list[str]:
    runtime = PodmanRuntime("image:1", config)
    runtime._ready = (Command("/bin/tool", is_podman), "image:1")
    return runtime.arguments("name", "/link", WorkerSpec(suites={"toy": Ref(name="toy")}))


def test_a_container_has_no_network_and_code_that_it_cannot_change() -> None:
    said = " ".join(words(ContainerConfig()))
    assert "--network none" in said
    assert said.count(":ro") == 2
    assert "--pull never" in said


def test_the_program_of_a_container_is_a_file_of_the_package_that_it_sees() -> None:
    program = next(word for word in words(ContainerConfig()) if word.endswith(".py"))
    package = Path(hocket.__file__).parent
    assert (package / Path(program).relative_to("/opt/hocket/hocket")).is_file()


def test_settings_become_words_of_the_command() -> None:
    config = ContainerConfig(
        gpus="0,1", memory="4g", cpus=1.5, mounts=("/a:/b:ro",), env=("X=1",), python="py"
    )
    said = " ".join(words(config))
    for part in ("--memory 4g", "--cpus 1.5", "--volume /a:/b:ro", "--env X=1", "--entrypoint py"):
        assert part in said
    assert "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1" in said
    assert '--gpus "device=0,1"' in " ".join(words(config, is_podman=False))
    assert "--gpus all" in " ".join(words(ContainerConfig(gpus="all"), is_podman=False))


def test_an_image_or_a_dockerfile_is_named_and_not_both() -> None:
    for argument, config in (("", ContainerConfig()), ("x", ContainerConfig(dockerfile="y"))):
        with pytest.raises(UsageError, match="Name an image"):
            DockerRuntime(argument, config)


def test_unknown_runtimes_and_settings_are_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'podman'"):
        plugins.build("runtimes", "pod-man:x")
    with pytest.raises(ConfigError, match="Did you mean 'memory'"):
        plugins.build("runtimes", "podman:x", {"memroy": "4g"})


def test_isolation_gives_every_episode_a_worker_of_its_own() -> None:
    runtime = PodmanRuntime("x", ContainerConfig(isolate=True))
    spec = WorkerSpec(suites={"toy": Ref(name="toy")})
    with Fleet(runtime, spec, FleetConfig(lanes=1)) as fleet:
        assert fleet.config.recycle_after == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="containers run on Linux")
def test_containers_are_strays_once_their_process_has_ended() -> None:
    ours = container_name()
    assert ours != container_name()  # One process may have several runtimes.
    assert not _is_stray(ours)
    prefix, boot, namespace, pid, began, number = ours.split("-")
    gone = "-".join((prefix, boot, namespace, pid, str(int(began) + 1), number))
    assert _is_stray(gone)  # Another process has its number now.
    assert _is_stray("-".join((prefix, "00000000", namespace, pid, began, number)))
    assert not _is_stray("-".join((prefix, boot, "1", "99999999", began, number)))
    for other in ("hocket-mine", "postgres", "hocket-a-b-c-d-e"):
        assert not _is_stray(other)


def test_the_hash_of_a_context_changes_with_whatever_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM x\n")
    seen = [context_hash(file)]
    (tmp_path / "data").write_text("1")
    seen.append(context_hash(file))
    (tmp_path / "data").write_text("2")
    seen.append(context_hash(file))
    os.chmod(tmp_path / "data", 0o755)
    seen.append(context_hash(file))
    assert len(set(seen)) == 4
    assert context_hash(file) == seen[-1]


def test_where_no_command_answers_each_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "docker"
    tool.write_text("#!/bin/sh\necho Cannot connect to the daemon >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkerFailed) as caught:
        Command.find(("docker", "podman"))
    assert "Cannot connect to the daemon" in str(caught.value)
    assert "There is no command 'podman'" in str(caught.value)
    assert not DockerRuntime.examine().is_usable
    # A request that fails is not taken for an image that is not there.
    with pytest.raises(WorkerFailed, match="Cannot connect"):
        Command(str(tool), is_podman=False).has_image("x")


STUBBORN = """#!/bin/sh
# A tool with one container, which goes when it is told to for the {goes_at}th time; the tool fails
# at that nevertheless.
case $1 in
    ps) [ $(wc -l < {notes}) -ge {goes_at} ] || echo hocket-there ;;
    rm) echo "$@" >> {notes}; echo It is busy. >&2; exit 2 ;;
esac
"""


@pytest.mark.parametrize(
    ("goes_at", "tries", "is_told"), [(1, 1, False), (2, 2, False), (3, 2, True)]
)
def test_a_container_that_did_not_go_is_told_to_again_and_the_log_tells_if_it_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, goes_at: int, tries: int, is_told: bool
) -> None:
    tool, notes = tmp_path / "podman", tmp_path / "notes"
    tool.write_text(STUBBORN.format(goes_at=goes_at, notes=notes))
    tool.chmod(0o755)
    Command(str(tool), is_podman=True).remove("hocket-gone", "hocket-there")
    both, one = "rm --force --time 0 hocket-gone hocket-there", "rm --force --time 0 hocket-there"
    assert notes.read_text().splitlines() == [both, one][:tries]
    told = [record.getMessage() for record in caplog.records]
    why = "`podman rm --force` failed (code 2): It is busy."
    assert told == is_told * [f"Containers may be left here: hocket-there. {why}"]


def test_a_tool_that_answers_nothing_any_more_is_not_asked_twice_and_the_log_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Command(str(tmp_path / "none"), is_podman=False).remove("hocket-1")
    (record,) = caplog.records
    assert "may be left here: hocket-1. `none rm --force` cannot be run" in record.getMessage()
