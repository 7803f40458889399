"""`hocket serve` as a process."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from websockets.sync.client import connect

import hocket
from hocket.core.codec import pack, unpack
from hocket.errors import ConfigError, UsageError
from hocket.serve.server import client_of, load_keys
from hocket.system.exposure import check_exposure, load_tls
from support.parts import missing
from support.processes import DEADLINE_S as WAIT_S
from support.processes import wait_until
from support.serve_command import command
from support.stock_openpi import StockServer

MAKE_CERTIFICATE = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "rsa:2048",
    "-nodes",
    "-days",
    "2",
    "-subj",
    "/CN=localhost",
    "-addext",
    "subjectAltName=DNS:localhost,IP:127.0.0.1",
]


def is_admitted(header: str | None, keys: dict[str, str]) -> bool:
    return client_of([] if header is None else [header], keys) is not None


def ask(place: str, **settings: Any) -> Any:
    with connect(place, compression=None, open_timeout=WAIT_S, **settings) as client:
        client.recv(timeout=WAIT_S)
        client.send(pack({"observation/state": np.zeros(3, np.float32)}))
        reply = client.recv(timeout=WAIT_S)
        assert isinstance(reply, bytes), reply
        return unpack(reply)["actions"]


def test_policy_is_served_by_its_name() -> None:
    flags = ("--policy", "zero", "--action-size", "4", "--port", "0")
    with command(*flags) as (process, place):
        assert ask(place).shape[1] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_sigterm_answers_what_is_under_way(tmp_path: Path) -> None:
    began = tmp_path / "began"
    flags = ("--policy", "support.slow_policy:Slow", "--port", "0", "--skip-warm-up")
    with command(*flags, HOCKET_TEST_BEGAN=str(began)) as (process, place):
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(ask(place)))
        asking.start()
        wait_until(began.exists)
        process.send_signal(signal.SIGTERM)
        asking.join(WAIT_S)
        assert process.wait(WAIT_S) == 0
    assert [answer.tolist() for answer in answers] == [[[1.0]]]


def test_several_addresses_are_a_gateway() -> None:
    def infer(_: dict[str, Any]) -> dict[str, Any]:
        return {"actions": np.full((2, 3), 6.0)}

    with StockServer(infer) as one, StockServer(infer) as two:
        policy = f"openpi://{one.address},openpi://{two.address}"
        with command("--policy", policy, "--port", "0") as (_, place):
            assert ask(place).tolist() == [[6, 6, 6], [6, 6, 6]]


def test_tls_serves_wss(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        [*MAKE_CERTIFICATE, "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
        check=False,
        timeout=100,
    )
    if made.returncode:
        pytest.skip(missing("openssl", "apt-get install openssl"))
    flags = ("--policy", "zero", "--action-size", "2", "--port", "0")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with command(*flags, *tls) as (_, place):
        assert place.startswith("wss://")
        trust = ssl.create_default_context(cafile=str(certificate))
        assert ask(place, ssl=trust).shape[1] == 2


def run_command(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hocket", "serve", *flags],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_port_that_is_taken_is_told_in_a_sentence() -> None:
    with StockServer(lambda _: {}) as server:
        done = run_command(
            "--policy", "zero", "--action-size", "1", "--port", str(server.port), "--skip-warm-up"
        )
    assert done.returncode == 2
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_without_a_key_listens_beyond_loopback() -> None:
    for host in ("0.0.0.0", "::", "10.1.2.3", "robot.local"):
        with pytest.raises(UsageError, match=f"{host} can be reached .* a key"):
            check_exposure(host, is_guarded=False, advice="Give a key.")
        check_exposure(host, is_guarded=True, advice="")
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(host, is_guarded=False, advice="")


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOCKET_API_KEY", raising=False)
    assert not load_keys(None)
    monkeypatch.setenv("HOCKET_API_KEY", "from-env")
    assert is_admitted("Api-Key from-env", load_keys(None))
    file = tmp_path / "keys"
    file.write_text("# team\nalpha\n\nbeta\n")
    keys = load_keys(str(file))
    assert is_admitted("Api-Key alpha", keys)
    assert is_admitted("Api-Key beta", keys)
    for header in (None, "", "alpha", "Api-Key # team", "Api-Key from-env", "Api-Key alph"):
        assert not is_admitted(header, keys)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="holds no key"):
        load_keys(str(file))


def test_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        load_tls(str(tmp_path / "cert.pem"), None)
    with pytest.raises(ConfigError, match="--tls-cert"):
        load_tls(None, "key.pem")


def test_package_stays_light() -> None:
    assert hocket.__doc__
    script = "import hocket.cli.serve, sys; print('websockets' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert done.stdout.strip() == "False", "--help must not wait for what serving needs"


def test_a_server_whose_words_nobody_reads_goes_on() -> None:
    words = ("--policy", "support.echo_policy:Echo", "--port", "0")
    with command(*words) as (_, place):  # which reads nothing once it serves
        for _ in range(1500):
            with connect(place, compression=None, open_timeout=WAIT_S) as client:
                client.recv(timeout=WAIT_S)
                client.send(pack({"observation/state": np.zeros(1), "prompt": 3}))
                assert "'prompt' must be text" in str(client.recv(timeout=WAIT_S))
        with connect(place, compression=None, open_timeout=WAIT_S) as client:
            client.recv(timeout=WAIT_S)
            client.send(pack({"observation/state": np.full(1, 4.0)}))
            reply = client.recv(timeout=WAIT_S)
            assert isinstance(reply, bytes)
            assert unpack(reply)["actions"].tolist() == [[4.0], [4.0]]


EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"


def served_words(name: str) -> list[str]:
    """The words of `hocket serve` in an example."""
    text = (EXAMPLES / name).read_text()
    if name.endswith(".service"):
        (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
        words = line.partition("=")[2].split()
    else:
        deployment, _ = yaml.safe_load_all(text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        words = container["command"] + container["args"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    assert Path(words[0]).name == "hocket"
    assert words[1] == "serve"
    return list(words[2:])


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_examples_of_production_serve(name: str, tmp_path: Path) -> None:
    words = served_words(name)
    (tmp_path / "keys").write_text("# arm 3\nthe-key-of-arm-3\n")
    here = {"--policy": "support.echo_policy:Echo", "--host": "127.0.0.1", "--port": "0"}
    here["--key-file"] = str(tmp_path / "keys")
    for flag, value in here.items():
        words[words.index(flag) + 1] = value
    for flag in ("--tls-cert", "--tls-key"):  # tried by another test
        if flag in words:
            del words[words.index(flag) : words.index(flag) + 2]
    with command(*words) as (process, place):
        headers = {"Authorization": "Api-Key the-key-of-arm-3"}
        with connect(place, compression=None, additional_headers=headers) as client:
            client.recv(timeout=WAIT_S)
            client.send(pack({"observation/state": np.full(1, 4.0)}))
            assert isinstance(client.recv(timeout=WAIT_S), bytes)
        port = place.rpartition(":")[2]
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=WAIT_S) as found:
            assert b'hocket_client_requests_total{client="arm 3"} 1\n' in found.read()
        if "requests" in words:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert re.fullmatch(
                r"hocket: arm 3, connection-1: \d+ bytes in, \d+ out, .* ms\n", line
            )
        process.terminate()
        assert process.wait(WAIT_S) == 0
