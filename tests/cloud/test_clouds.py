"""Workers on Modal and Daytona: their real packages, with what stands in for their servers, and
real workers behind an encrypted entrance."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.cloud.daytona import DaytonaConfig, DaytonaRuntime
from hocket.cloud.modal import ModalConfig, ModalRuntime
from hocket.cloud.receiver import RECEIVER, send_code
from hocket.cloud.sandbox import HOST_TAG, OWNER_TAG, CloudRuntime, variables
from hocket.core.contracts.runtime import Usability
from hocket.errors import UsageError, WorkerFailed
from hocket.system.machine import host, owner
from hocket.testing import check_runtime
from hocket.workers.notices import LaneFailed, LanesBegun, LanesExecuted, LanesUp
from hocket.workers.remote import websocket
from support.processes import DEADLINE_S, alive, wait_until
from support.rig import Rig, trials
from support.sandboxes import Machine, Sandboxes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LONG = {"length_min": 10**6, "length_max": 10**6}

ENGINE = """
import sys
sys.path.insert(0, {tests!r})
from hocket.core import plugins
from hocket.workers.notices import LanesBegun
from support.rig import Rig
runtime = plugins.build("runtimes", "{name}:sim", {{"python": sys.executable}})
with Rig(runtime=runtime, toy={{"length_min": 10**6, "length_max": 10**6}}) as rig:
    rig.begin()
    rig.wait(LanesBegun)
    print("ready", flush=True)
    while True:
        rig.hear()
"""


@dataclass
class Cloud:
    """A provider, and what stands in for it."""

    name: str
    sandboxes: Sandboxes
    make: Callable[..., CloudRuntime]
    fail: Callable[[str, str], None]
    """Let a kind of call fail in some way."""
    stand_in: Any

    def runtime(self, argument: str = "sim", **config: Any) -> CloudRuntime:
        return self.make(argument, **({"python": sys.executable} | config))

    def failure(self, **settings: Any) -> str:
        """What a lane that cannot be started says."""
        with Rig(runtime=self.runtime(**settings)) as rig:
            failed = rig.wait(LaneFailed)
        assert failed.kind == "WorkerStart"
        return failed.message


@pytest.fixture
def modal_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    modal = pytest.importorskip("modal", reason="pip install 'hocket[slow]'")
    from grpclib import Status

    from support.modal_cloud import TOKEN, ModalCloud

    stand_in = ModalCloud(tmp_path)
    monkeypatch.setenv("MODAL_SERVER_URL", stand_in.server_url)
    monkeypatch.setenv("MODAL_TOKEN_ID", TOKEN[0])
    monkeypatch.setenv("MODAL_TOKEN_SECRET", TOKEN[1])
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    ways = {
        "failed": (Status.INTERNAL, "It is on fire."),
        "quota": (Status.RESOURCE_EXHAUSTED, "Too many sandboxes."),
        "forbidden": (Status.PERMISSION_DENIED, "Not in this workspace."),
    }
    calls = {
        "image": ["ImageGetByTag"],
        "create": ["SandboxCreateV2"],
        "delete": ["SandboxTerminateV2"],
        "list": ["SandboxListV2"],
    }

    def fail(call: str, way: str) -> None:
        stand_in.faults.update(dict.fromkeys(calls[call], ways[way]))

    def make(argument: str, **config: Any) -> CloudRuntime:
        return ModalRuntime(argument, ModalConfig(**config))

    modal.Client.set_env_client(None)
    yield Cloud("modal", stand_in.sandboxes, make, fail, stand_in)
    monkeypatch.setenv("MODAL_TOKEN_ID", TOKEN[0])
    modal.Client.from_env().__exit__(None, None, None)
    stand_in.close()


@pytest.fixture
def daytona_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    pytest.importorskip("daytona", reason="pip install 'hocket[slow]'")
    from support.daytona_cloud import KEY, DaytonaCloud

    stand_in = DaytonaCloud(tmp_path)
    monkeypatch.setenv("DAYTONA_API_URL", stand_in.url)
    monkeypatch.setenv("DAYTONA_API_KEY", KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.chdir(tmp_path)
    ways = {
        "failed": (400, "It is on fire."),
        "quota": (403, "Total CPU limit exceeded. Maximum allowed: 10."),
        "forbidden": (403, "Not in this organization."),
    }
    routes = {
        "image": "GET snapshots",
        "create": "POST sandbox",
        "delete": "DELETE sandbox",
        "list": "GET sandbox",
    }

    def fail(call: str, way: str) -> None:
        stand_in.faults[routes[call]] = ways[way]

    def make(argument: str, **config: Any) -> CloudRuntime:
        return DaytonaRuntime(argument, DaytonaConfig(**config))

    yield Cloud("daytona", stand_in.sandboxes, make, fail, stand_in)
    stand_in.close()


@pytest.fixture(params=["modal", "daytona"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.getfixturevalue(f"{request.param}_cloud")
    return found


def test_workers_there_keep_every_rule_of_a_runtime(cloud: Cloud) -> None:
    check_runtime(cloud.runtime)
    assert cloud.sandboxes.machines == {}


def test_trials_are_the_same_and_every_lane_has_a_sandbox_that_goes_with_it(cloud: Cloud) -> None:
    with Rig() as rig:
        expected = rig.play(trials(4))
    with Rig(lanes=2, runtime=cloud.runtime()) as rig:
        assert rig.play(trials(4)) == expected
        assert len(cloud.sandboxes.machines) == 2
        assert len({machine.token for machine in cloud.sandboxes.machines.values()}) == 2
    assert cloud.sandboxes.machines == {}
    assert len(cloud.sandboxes.deleted) == 2


def test_an_evaluation_there_has_its_files_here(cloud: Cloud, tmp_path: Path) -> None:
    report = hocket.evaluate(
        env="toy:image",
        policy="random",
        episodes=2,
        lanes=1,
        runtime=f"{cloud.name}:sim",
        runtime_config={"python": sys.executable},
        video="first:1",
        out=tmp_path / "run",
    )
    assert report.overall.errors == 0
    assert list((tmp_path / "run").rglob("*.mp4"))
    assert cloud.sandboxes.machines == {}


def test_what_is_missing_is_not_what_failed_and_who_may_not_is_told_so(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no" in (said := cloud.failure(argument="absent"))
    assert "'absent'" in said
    assert "hocket image" in said
    cloud.fail("image", "failed")
    said = cloud.failure()
    assert "It is on fire." in said
    assert "has no" not in said
    cloud.stand_in.faults.clear()
    cloud.fail("create", "quota")
    said = cloud.failure()
    assert "limit" in said
    assert "--lanes" in said
    cloud.stand_in.faults.clear()
    cloud.fail("list", "forbidden")
    assert "does not allow" in cloud.failure()
    assert cloud.sandboxes.deleted == []


def test_an_expired_key_is_named_as_such(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-old")
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_old")
    said = cloud.failure()
    assert "expired" in said
    assert {"modal": "modal token new", "daytona": "DAYTONA_API_KEY"}[cloud.name] in said


def test_a_failed_delete_is_told_with_the_id_to_delete(
    cloud: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    with Rig(runtime=cloud.runtime()) as rig:
        rig.wait(LanesUp)
        (ident,) = cloud.sandboxes.machines
        cloud.fail("delete", "failed")
        with caplog.at_level(logging.ERROR):
            rig.fleet.close()
    (record,) = [one for one in caplog.records if one.name == "hocket.cloud.sandbox"]
    said = record.getMessage()
    assert f"sandbox {ident}" in said
    assert "could not be deleted" in said
    assert "It is on fire." in said
    assert {"modal": f"from_id('{ident}')", "daytona": f"daytona delete {ident}"}[
        cloud.name
    ] in said


def test_the_next_start_deletes_what_processes_left_that_have_ended(cloud: Cloud) -> None:
    gone = owner().rpartition("-")[0] + "-1"
    for_app = {"app": "ap-hocket", "states": []}
    stray = cloud.sandboxes.make({HOST_TAG: host(), OWNER_TAG: gone}, **for_app)
    mine = cloud.sandboxes.make({HOST_TAG: host(), OWNER_TAG: owner()}, **for_app)
    elsewhere = cloud.sandboxes.make({HOST_TAG: "other", OWNER_TAG: gone}, **for_app)
    with Rig(runtime=cloud.runtime()) as rig:
        rig.wait(LanesUp)
        wait_until(lambda: stray.ident in cloud.sandboxes.deleted)
    assert {mine.ident, elsewhere.ident} == set(cloud.sandboxes.machines)


def test_workers_of_an_engine_that_was_killed_end_and_the_next_start_deletes_their_sandboxes(
    cloud: Cloud,
) -> None:
    code = ENGINE.format(tests=str(Path(__file__).parents[1]), name=cloud.name)
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    with engine.stdout:
        assert engine.stdout.readline() == "ready\n"
    (left,) = cloud.sandboxes.machines.values()
    assert left.process is not None
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    assert left.process.wait(DEADLINE_S) == 0
    assert left.ident in cloud.sandboxes.machines
    with Rig(runtime=cloud.runtime()) as rig:
        rig.wait(LanesUp)
    assert left.ident in cloud.sandboxes.deleted
    assert cloud.sandboxes.machines == {}


def test_a_sandbox_that_ends_costs_its_attempt_and_another_comes(cloud: Cloud) -> None:
    with Rig(runtime=cloud.runtime(), toy=LONG) as rig:
        rig.begin()
        rig.wait(LanesBegun)
        (machine,) = cloud.sandboxes.machines.values()
        assert machine.process is not None
        machine.notes["code"] = 124
        os.killpg(machine.process.pid, signal.SIGKILL)
        failed = rig.wait(LaneFailed)
        assert machine.ident in failed.message
        expected = {"modal": "lifetime (--runtime.timeout)", "daytona": "ended with code -9"}
        assert expected[cloud.name] in failed.message
        rig.wait(LanesUp)
        rig.begin(attempt=1)
        rig.wait(LanesBegun)
        rig.execute(np.zeros((5, 4)), attempt=1)
        rig.wait(LanesExecuted)
    assert cloud.sandboxes.machines == {}


def test_a_sandbox_whose_worker_ends_at_once_is_told_of_and_deleted(cloud: Cloud) -> None:
    said = cloud.failure(python="/bin/false")
    assert "did not come up" in said
    assert "ended with code 1" in said
    assert cloud.sandboxes.machines == {}


def test_a_sandbox_that_is_slow_is_awaited_and_one_that_nobody_wants_is_given_back(
    cloud: Cloud,
) -> None:
    cloud.sandboxes.is_open = False
    opened = threading.Timer(2.0, lambda: setattr(cloud.sandboxes, "is_open", True))
    opened.start()
    with Rig(runtime=cloud.runtime()) as rig:
        rig.wait(LanesUp)
    opened.join()
    cloud.sandboxes.is_open = False
    with Rig(runtime=cloud.runtime()):
        wait_until(lambda: bool(cloud.sandboxes.machines))
    assert cloud.sandboxes.machines == {}


def test_nobody_gets_in_without_both_the_token_and_the_key(cloud: Cloud) -> None:
    runtime = cloud.runtime()
    runtime.prepare()
    key = websocket.new_key()
    sandbox = runtime.create(key, {HOST_TAG: host()})
    url, headers = sandbox.entrance()
    (machine,) = cloud.sandboxes.machines.values()

    def refused() -> str:
        try:
            send_code(url, "wrong", headers)
        except OSError:
            return ""  # It is not up yet.
        except WorkerFailed as exc:
            return str(exc)
        raise AssertionError("A wrong key was taken.")

    wait_until(lambda: "key is missing or wrong" in refused())
    with pytest.raises(ConnectionError, match="401"):
        send_code(url, key, {})
    with pytest.raises(ConnectionError, match="401"):
        send_code(url, key, {name: f"{value}x" for name, value in headers.items()})
    assert cloud.sandboxes.strangers >= 2
    send_code(url, key, headers)

    def dial(brought: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            for end in (ours, theirs):
                stack.callback(end.close)
            websocket.join(url.replace("https", "wss"), brought, theirs, headers)
            stack.pop_all()
        return ours

    def is_kept_out() -> bool:
        try:
            dial("wrong")
        except WorkerFailed as exc:
            return "(401)" in str(exc)
        except OSError:
            return False
        raise AssertionError("A wrong key was taken.")

    wait_until(is_kept_out)
    dial(key).close()
    assert machine.process is not None
    wait_until(lambda: not alive(machine.process.pid))
    sandbox.delete()


def test_an_image_is_built_once_from_a_dockerfile(cloud: Cloud, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM python:3.11-slim\nRUN pip install numpy gymnasium\n")
    for _ in range(2):
        with Rig(runtime=cloud.runtime("", dockerfile=str(folder))) as rig:
            rig.wait(LanesUp)
    if cloud.name == "daytona":
        assert cloud.stand_in.builds == 1
        assert any("pip install numpy" in text for text in cloud.stand_in.snapshots.values())
    else:
        assert len([text for text in cloud.stand_in.built if "pip install numpy" in text]) == 1
    said = cloud.failure(argument="", dockerfile=str(tmp_path / "nowhere"))
    assert "There is no Dockerfile" in said


def test_settings_reach_modal(modal_cloud: Cloud) -> None:
    config = {"region": "eu", "cpus": 2.0, "memory": 4096, "timeout": 900, "env": ("A=b",)}
    with Rig(runtime=modal_cloud.runtime(app="mine", **config)) as rig:
        rig.wait(LanesUp)
        (machine,) = modal_cloud.sandboxes.machines.values()
        made: Any = machine.notes["definition"]
    assert machine.notes["app"] == "ap-mine"
    assert (made.timeout_secs, list(made.scheduler_placement.regions)) == (900, ["eu"])
    assert (made.resources.milli_cpu, made.resources.memory_mb) == (2000, 4096)
    with Rig(runtime=modal_cloud.runtime(gpu="H100")) as rig:  # By the older of its two services.
        rig.wait(LanesUp)
        (machine,) = modal_cloud.sandboxes.machines.values()
        made = machine.notes["definition"]
    assert made.resources.gpu_config.gpu_type == "H100"
    assert modal_cloud.sandboxes.machines == {}


def test_a_way_in_that_is_not_encrypted_is_not_taken(modal_cloud: Cloud) -> None:
    modal_cloud.stand_in.url_scheme = "http"
    assert "not encrypted" in modal_cloud.failure()
    assert modal_cloud.sandboxes.machines == {}


def test_settings_reach_daytona_and_a_sandbox_that_cannot_start_is_deleted(
    daytona_cloud: Cloud,
) -> None:
    with Rig(runtime=daytona_cloud.runtime(region="eu", timeout=601, env=("A=b",))) as rig:
        rig.wait(LanesUp)
        (machine,) = daytona_cloud.sandboxes.machines.values()
        notes = machine.notes
    assert (notes["target"], notes["ttlMinutes"], notes["public"]) == ("eu", 11, False)
    assert (notes["autoStopInterval"], notes["autoDeleteInterval"]) == (0, 0)
    assert isinstance(notes["env"], dict)
    assert notes["env"]["A"] == "b"
    daytona_cloud.stand_in.states = ["creating", "error", "error", "error"]
    assert "failed" in daytona_cloud.failure()
    daytona_cloud.stand_in.states = ["creating"] * 100
    assert "in time (--runtime.create-timeout)" in daytona_cloud.failure(create_timeout=3)
    assert daytona_cloud.sandboxes.machines == {}


class OwnCloud(CloudRuntime):
    """A provider whose sandboxes are processes of this machine: no package of others is needed."""

    name, package, how_to_delete = "Own", "hocket", "rm {ident}"

    def __init__(self, sandboxes: Sandboxes) -> None:
        super().__init__()
        self.sandboxes = sandboxes

    @classmethod
    def examine_key(cls) -> Usability:
        return Usability(is_usable=True)

    def prepare(self) -> None: ...

    def create(self, key: str, tags: Mapping[str, str]) -> OwnSandbox:
        machine = self.sandboxes.make(tags)
        words = (sys.executable, "-c", RECEIVER)
        machine.run(words, variables(key, ("A=b",)), self.sandboxes.folder)
        return OwnSandbox(self.sandboxes, machine)

    def tagged(self, tag: str, value: str) -> list[tuple[OwnSandbox, Mapping[str, str]]]:
        machines = [one for one in self.sandboxes.machines.values() if one.tags.get(tag) == value]
        return [(OwnSandbox(self.sandboxes, machine), machine.tags) for machine in machines]


class OwnSandbox:
    def __init__(self, sandboxes: Sandboxes, machine: Machine) -> None:
        self.sandboxes, self.machine, self.ident = sandboxes, machine, machine.ident

    def entrance(self) -> tuple[str, Mapping[str, str]]:
        return self.sandboxes.url, {"X-Token": self.machine.token}

    def account(self) -> str:
        return ""

    def delete(self) -> None:
        self.sandboxes.delete(self.ident)


def test_a_provider_of_three_methods_runs_lanes_and_gives_back_what_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandboxes = Sandboxes(tmp_path, "X-Token")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    gone = owner().rpartition("-")[0] + "-1"
    stray = sandboxes.make({HOST_TAG: host(), OWNER_TAG: gone})
    assert OwnCloud.examine().is_usable
    with Rig() as rig:
        expected = rig.play(trials(2))
    with Rig(runtime=OwnCloud(sandboxes)) as rig:
        assert rig.play(trials(2)) == expected
        assert stray.ident in sandboxes.deleted
        assert len(sandboxes.machines) == 1
    assert sandboxes.machines == {}
    sandboxes.close()


def test_what_cannot_be_asked_for_is_refused_before_anybody_is_asked() -> None:
    for wrong in (
        lambda: ModalRuntime(""),
        lambda: ModalRuntime("sim", ModalConfig(timeout=90000)),
        lambda: DaytonaRuntime(""),
        lambda: DaytonaRuntime("sim", DaytonaConfig(dockerfile="x")),
        lambda: DaytonaRuntime("sim", DaytonaConfig(cpus=2)),
        lambda: DaytonaRuntime("sim", DaytonaConfig(timeout=5)),
    ):
        with pytest.raises(UsageError):
            wrong()
