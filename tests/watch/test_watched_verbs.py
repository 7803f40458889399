"""Every verb that makes a run shows it with --watch, and `hocket watch` serves beyond loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.parts import needs
from support.processes import DEADLINE_S
from support.recorded_runs import SUCCESS, plan, record_run
from support.watched import joined

pytestmark = pytest.mark.slow
TOY = "--env toy:image --policy random --lanes 2 --env.step-s 0.02"
TOY += " --env.length-min 60 --env.length-max 80"
TRAINED = "--env toy:count --policy actor --algo grpo --group 2 --reward env --batch 4"
TRAINED += " --lanes 2 --steps 100000 --eval-every 0 --env.step-s 0.01"


@contextlib.contextmanager
def started(folder: Path, arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command of hocket's, and the address of the page that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hocket", *arguments.split()],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "://" in line and "Watch" in line:
                    break
            assert "://" in said[-1], "".join(said)
            yield process, said[-1].split()[-1]
        finally:
            process.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        f"eval {TOY} --episodes 50 --out run",
        f"collect {TOY} --episodes 50 --to run run",
        f"train {TRAINED} --out run",
    ],
    ids=["eval", "collect", "train"],
)
def test_a_verb_shows_its_run_while_it_goes_on(tmp_path: Path, arguments: str) -> None:
    with started(tmp_path, f"{arguments} --watch") as (_, address), joined(address) as page:
        while not page.until("change", "head")["head"]["alive"]:
            pass
        while not page.until("change", "lanes")["lanes"]:
            pass


def test_a_run_that_goes_on_is_shown_when_it_is_resumed(tmp_path: Path) -> None:
    eval_ = f"eval {TOY} --episodes 50 --out run --watch"
    with started(tmp_path, eval_) as (process, address), joined(address) as page:
        page.until("change", "cells")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    with started(tmp_path, "resume run --watch") as (_, address), joined(address) as page:
        assert page.until("snapshot", "plan")["head"]["done"] > 0
        page.until("change", "cells")


def test_many_runs_are_listed_while_they_go_on(tmp_path: Path) -> None:
    text = "shared: {policy: random, episodes: 20, lanes: 2, video: none}\nruns:\n"
    toy = "{length_min: 60, length_max: 80, step_s: 0.02}"
    text += f"  one: {{env: toy:image, env_config: {toy}}}\n  two: {{env: toy:count}}\n"
    (tmp_path / "jobs.yaml").write_text(text)
    jobs = "eval --jobs jobs.yaml --out many --watch"
    with started(tmp_path, jobs) as (_, address), joined(address) as page:
        while not any(run["alive"] for run in page.until("runs")["runs"]):
            pass


def own_address() -> str | None:
    """An address of this machine beyond loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if found.startswith("127.") else found


@pytest.mark.skipif(own_address() is None, reason="this machine has no address but loopback's")
@needs("openssl", is_there=shutil.which("openssl") is not None, how="apt-get install openssl")
@pytest.mark.parametrize("is_secret", [False, True])
def test_beyond_loopback_a_page_is_served_with_a_key_or_with_tls(
    tmp_path: Path, *, is_secret: bool
) -> None:
    record_run(tmp_path / "run", plan(["push"], 2), lambda _: SUCCESS)
    (tmp_path / "key").write_text("long-enough-for-an-address\n")
    words, context = "--key-file key", None
    if is_secret:
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"
        names = f"-subj /CN=here -addext subjectAltName=IP:{own_address()} -keyout pem -out cert"
        subprocess.run(f"{request} {names}".split(), cwd=tmp_path, check=True, capture_output=True)
        context = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        words = "--tls-cert cert --tls-key pem"
    with started(tmp_path, f"watch run --host 0.0.0.0 {words}") as (_, shown):
        scheme, _, where = shown.partition("://")
        port, _, path = where.partition(":")[2].partition("/")
        assert scheme == ("https" if is_secret else "http")
        address = f"{scheme}://{own_address()}:{port}/"
        with urllib.request.urlopen(address + path, context=context) as page:
            assert b"page.js" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address, context=context)
        evil = urllib.request.Request(address + path, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(evil, context=context)
