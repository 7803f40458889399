"""vla-eval's protocol, both ways, against the package itself."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

import hocket
from hocket.adapters.policies import vla_eval_wire as wire
from hocket.adapters.policies.vla_eval import PARAMS_FACT, VlaEval, VlaEvalConfig
from hocket.core.data import Batch
from hocket.core.specs import ArraySpec
from hocket.errors import PolicyError, SessionLostError, SpecMismatchError, WireError
from hocket.runs.config import EvalConfig
from support.parts import needs_venv, python_of
from support.processes import DEADLINE_S
from support.serve_command import TESTS, command
from support.sites import outcomes, run_here
from support.stock_openpi import free_port
from support.wire_clients import env_spec, make_batch, make_row

NAMING = ("--policy", "support.naming_policy:Naming", "--port", "0", "--protocol", "vla-eval")
PYTHON = python_of("vla-eval")
needs_vla_eval = needs_venv("vla-eval")


@needs_vla_eval
def test_their_harness_runs_against_a_policy_of_ours(tmp_path: Path) -> None:
    bench = Path(TESTS) / "support" / "vla_eval_bench.py"
    with command(*NAMING) as (_, place):
        done = subprocess.run(
            [str(PYTHON), str(bench), place],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(bench.parent)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = json.loads(done.stdout.splitlines()[-1])
    assert result["mean_success"] == 1.0, done.stdout[-2000:]
    episodes = [one for task in result["tasks"] for one in task["episodes"]]
    assert len(episodes) == 6
    assert {one["steps"] for one in episodes} == {12}


@contextmanager
def their_server(
    module: str, *words: str, python: Path = PYTHON, packages: Path | None = None
) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen(
        [
            *(str(python), "-m", f"vla_eval.model_servers.{module}"),
            *("--address", f"127.0.0.1:{port}", *words),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages or "")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@needs_vla_eval
def test_a_run_asks_their_server_at_every_step(tmp_path: Path) -> None:
    with their_server("behavior1k_baseline", "--args.action_dim=2") as port:
        config = {
            "env": ("support.point_env:PointEnv",),
            "policy": f"vla-eval://127.0.0.1:{port}",
            "episodes": 5,
            "lanes": 2,
            "video": "none",
        }
        report = run_here(EvalConfig.from_plain(config), tmp_path / "run")
    assert report.overall.n == 5
    assert report.exactness == "environment"


PURE = ("vla_eval", "vla_eval-0.8.0.dist-info", "jsonargparse", "lazyregistry", "typeshed_client")
"""What their servers need beside LeRobot, whose Python is another: packages of Python alone."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@needs_vla_eval
@needs_venv("lerobot")
def test_their_bridge_to_lerobot_acts_as_lerobot_does(tmp_path: Path) -> None:
    """Trial by trial. Both scale pictures in ways of their own, which differ in the last bit."""
    packages, act = tmp_path / "packages", tmp_path / "act"
    packages.mkdir()
    (theirs,) = (PYTHON.parents[1] / "lib").glob("python3*/site-packages")
    for name in PURE:
        (packages / name).symlink_to(theirs / name)
    making = (
        "from hocket.adapters.policies.lerobot.folder import mend_torchvision;"
        "mend_torchvision(); from support import lerobot_models as models;"
        "models.save('act', 'act', states=2, moves=2, cameras=['observation.images.image'])"
    )
    paths = os.pathsep.join([str(Path(hocket.__file__).parents[1]), TESTS])
    environment = {**os.environ, "PYTHONPATH": paths}
    python = python_of("lerobot")
    subprocess.run([python, "-c", making], cwd=tmp_path, env=environment, check=True)
    plain = {"env": ("support.shown_point:ShownPoint",), "episodes": 4, "video": "none"}
    words = ("--args.policy_type=act", f"--args.checkpoint={act}", "--args.device=cpu")
    with their_server("lerobot", *words, python=python, packages=packages) as port:
        config = {**plain, "policy": f"vla-eval://127.0.0.1:{port}", "lanes": 2}
        assert run_here(EvalConfig.from_plain(config), tmp_path / "bridged").overall.n == 4
    # With as many threads as theirs: sums of more are not the same.
    config = {**plain, "policy": f"lerobot:{act}", "policy_python": str(python), "lanes": 1}
    config["policy_config"] = {"threads": 1}
    run_here(EvalConfig.from_plain(config), tmp_path / "direct")
    found, direct = (sorted(outcomes(tmp_path / name)) for name in ("bridged", "direct"))
    assert [one[:3] for one in found] == [one[:3] for one in direct]
    rewards = [one[3] for one in direct]
    assert [one[3] for one in found] == pytest.approx(rewards, rel=1e-6)
    assert len({one[3] for one in found}) == 4, "each trial has a reward of its own"
    # Their server is asked at every step, since it keeps the chunk of four actions itself.
    assert [one[6] for one in found] == [one[2] for one in found]
    assert [4 * one[6] for one in direct] == [one[2] for one in direct]


# -- what no server of theirs does on purpose, by hand -------------------------------------------


@contextmanager
def by_hand(*replies: tuple[str, dict[str, Any], int], **hello: Any) -> Iterator[VlaEval]:
    """A client, and a server that says hello, and then to each observation the next of these: kind,
    payload, and how late its number is."""
    left = list(replies)

    def attend(connection: ServerConnection) -> None:
        for frame in connection:
            kind, _, number = wire.unpack_message(frame)
            if kind == wire.HELLO:
                says = {"protocol_version": 1, **hello}
                connection.send(wire.pack_message(wire.HELLO, says, number))
            elif kind == wire.OBSERVATION:
                found, payload, late = left.pop(0)
                connection.send(wire.pack_message(found, payload, number - late))

    with serve(attend, "127.0.0.1", 0, compression=None) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        port = listening.socket.getsockname()[1]
        config = VlaEvalConfig(timeout_s=DEADLINE_S, ready_timeout_s=DEADLINE_S)
        with closing(VlaEval(f"127.0.0.1:{port}", config)) as policy:
            yield policy
        listening.shutdown()


def ask(policy: VlaEval, batch: Batch) -> np.ndarray:
    return np.asarray(policy.infer(batch).values)


def test_an_answer_to_another_observation_ends_the_attempt() -> None:
    good = (wire.ACTION, {"actions": np.array([1.0, 2.0])}, 0)
    late = (wire.ACTION, {"actions": np.array([9.0, 9.0])}, 1)
    with by_hand(good, late, good) as policy:
        batch = make_batch(1)
        policy.begin_session(batch.rows[0])
        assert ask(policy, batch).tolist() == [[[1.0, 2.0]]]
        with pytest.raises(SessionLostError, match="its stream is late"):
            ask(policy, batch)
        with pytest.raises(SessionLostError, match="is gone"):
            ask(policy, batch)
        policy.end_session(batch.rows[0].session)
        policy.begin_session(batch.rows[0])
        assert ask(policy, batch).tolist() == [[[1.0, 2.0]]]


def test_an_error_is_told_in_the_server_s_words() -> None:
    with by_hand((wire.ERROR, {"error": "episode_start_failed: no such task"}, 1)) as policy:
        batch = make_batch(1)
        policy.begin_session(batch.rows[0])
        with pytest.raises(PolicyError, match="no such task"):
            ask(policy, batch)


def test_a_chunk_is_executed_as_one() -> None:
    with by_hand((wire.ACTION, {"actions": np.ones((4, 2), np.float32)}, 0)) as policy:
        batch = make_batch(1)
        policy.begin_session(batch.rows[0])
        assert ask(policy, batch).shape == (1, 4, 2)


WANTED = {
    "oft": {"env_seed": 0, "quat_no_antipodal": True, "send_wrist_image": True, "send_state": True},
    "openvla": {"seed": 0},
    "vlanext": {"send_state": True, "send_wrist_image": True, "quat_no_antipodal": True},
    "cogact": {"success_mode": "truncation"},
    "mme_vla": {"send_state": True, "send_video_history": True},
    "xvla": {"send_state": False, "absolute_action": True, "send_wrist_image": None},
    "zero": {"send_state": True, "image_size": 0},
}
"""What servers of 0.8 say that they want."""
UNKNOWN = {"quat_no_antipodal", "success_mode", "send_video_history", "absolute_action"}


@pytest.mark.parametrize("name", WANTED)
def test_what_a_server_wants_of_its_env_is_given_or_refused(name: str) -> None:
    given = {"observation/state": ArraySpec(shape=(1,), dtype="<f4")}
    picture = ArraySpec(shape=(4, 4, 3), dtype="|u1")
    two = {**given, "observation/image": picture, "observation/wrist": picture}
    env = dataclasses.replace(env_spec(1), observations=two)
    refused = (UNKNOWN | {"image_size"}) & WANTED[name].keys()
    with by_hand(observation_params=WANTED[name]) as policy:
        if not refused:
            policy.bind(env)
            return
        with pytest.raises(SpecMismatchError, match=rf"--policy\.provides {'|'.join(refused)}"):
            policy.bind(env)
        told = VlaEvalConfig(provides=tuple(refused), ready_timeout_s=DEADLINE_S)
        with closing(VlaEval(policy._address, told)) as other:
            other.bind(env)


def test_a_camera_or_a_state_that_is_not_there_is_refused() -> None:
    blind = dataclasses.replace(env_spec(1), observations={})
    for name, env in (("send_wrist_image", env_spec(1)), ("send_state", blind)):
        with (
            by_hand(observation_params={name: True}) as policy,
            pytest.raises(SpecMismatchError, match=name),
        ):
            policy.bind(env)


def test_keys_that_names_do_not_tell_are_asked_for() -> None:
    picture = np.zeros((6, 8, 3), np.uint8)
    # Without `--protocol`, by the path.
    with command(*NAMING[:4]) as (_, place), connect(f"{place}/vla-eval") as client:
        seen = {
            "images": {"a": picture, "b": picture},
            "state": np.zeros(1),
            "task_description": "",
        }
        client.send(wire.pack_message(wire.OBSERVATION, seen, 5))
        kind, payload, number = wire.unpack_message(client.recv(timeout=DEADLINE_S))
        assert (kind, number) == (wire.ERROR, 5)
        assert "--keys observation/image=NAME" in payload["error"]
        del seen["images"]["b"]
        client.send(wire.pack_message(wire.OBSERVATION, seen, 6))
        kind, payload, number = wire.unpack_message(client.recv(timeout=DEADLINE_S))
        assert (kind, number) == (wire.ACTION, 6)
        assert payload["actions"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "picture",
    [
        {"format": "png", "data": b"", "shape": [1, 1, 3]},
        {"format": "jpeg", "data": b"x", "shape": [1, 1, 3]},
        {"format": "png", "data": b"x", "shape": [1 << 30, 1 << 30, 3]},
        {"format": "raw", "data": b"x", "shape": [9], "dtype": "|u1"},
        {"format": "raw", "data": b"x", "shape": [1], "dtype": "O"},
        {"format": "png"},
        {},
    ],
    ids=repr,
)
def test_pictures_that_are_none_are_refused(picture: dict[str, Any]) -> None:
    import msgpack

    payload = {"images": {"__image__": True, **picture}}
    message = {"type": "observation", "payload": payload, "seq": 0, "timestamp": 0.0}
    with pytest.raises(WireError, match="no message of vla-eval's"):
        wire.unpack_message(msgpack.packb(message))


def test_nobody_who_listens_is_told_as_such() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        config = VlaEvalConfig(ready_timeout_s=0.5)
        with (
            closing(VlaEval(address, config)) as policy,
            pytest.raises(PolicyError, match="No model server answered"),
        ):
            policy.begin_session(make_row(1))


@pytest.mark.parametrize("name", WANTED)
def test_a_benchmark_of_theirs_is_refused_with_the_arguments_that_it_needs(name: str) -> None:
    wanted = {k: v for k, v in WANTED[name].items() if v is not False and v is not None}
    made = {"suite": "libero_goal", "success_mode": "early_stop"}
    cameras = dict.fromkeys(
        ("observation/a", "observation/b"), ArraySpec(shape=(4, 4, 3), dtype="|u1")
    )
    seen = {**cameras, "observation/state": ArraySpec(shape=(1,), dtype="<f4")}
    env = dataclasses.replace(env_spec(1), observations=seen)
    with by_hand(observation_params=WANTED[name]) as policy:
        policy.bind(dataclasses.replace(env, facts={PARAMS_FACT: json.dumps({**made, **wanted})}))
        lacking = dataclasses.replace(env, facts={PARAMS_FACT: json.dumps(made)})
        if UNKNOWN.isdisjoint(wanted) and "image_size" not in wanted:
            policy.bind(lacking)
            return
        with pytest.raises(SpecMismatchError) as refused:
            policy.bind(lacking)
    advised = json.loads(str(refused.value).partition("--env.params '")[2].rpartition("'")[0])
    assert advised == {**made, **WANTED[name]}
