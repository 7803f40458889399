"""Stock clients of all dialects at one `hocket serve`: openpi's own package by three paths, and
vla-eval's own connection. `-s` shows the figures."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from support.parts import needs_venv, python_of
from support.processes import DEADLINE_S
from support.serve_command import TESTS, command

CLIENTS = {"openpi": 8, "sglang": 8, "vllm-omni": 7, "vla-eval": 8}
FLOOD = 32
"""Connections of the 32nd client."""
SECONDS = 15.0
IDLE = 1000
IDLE_S = 25.0
"""Longer than the time between two pings."""
SERVE = ("--policy", "support.marking_policy:Marking", "--port", "0", "--drain", "1")
TICKS = os.sysconf("SC_CLK_TCK")

pytestmark = [
    pytest.mark.slow,
    needs_venv("vla-eval"),
    pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager"),
]


@contextmanager
def clients(dialect: str, place: str, first: int, count: int, package: Path) -> Iterator[Any]:
    """A process with clients that are connected, and wait for a word."""
    script = Path(TESTS) / "support" / "stock_clients.py"
    process = subprocess.Popen(
        [str(python_of("vla-eval")), str(script), dialect, place, str(first), str(count)],
        env={**os.environ, "PYTHONPATH": str(package)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", dialect
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(line: str) -> None:
    sys.stdout.write(f"\n{line}")


def say(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_nobody_gets_another_s_row_or_loses_a_fifth_of_his_share(openpi_client: Any) -> None:
    package = Path(openpi_client.__file__).parents[1]
    with command(*SERVE) as (_, place), ExitStack() as stack:
        place = place.removeprefix("ws://")
        started: dict[str, Any] = {}
        for number, (dialect, count) in enumerate([*CLIENTS.items(), ("flood", FLOOD)]):
            asking = clients(dialect, place, 50 * number, count, package)
            started[dialect] = stack.enter_context(asking)
        for process in started.values():
            say(process)
        time.sleep(SECONDS)
        for process in started.values():
            say(process)
        found = {name: json.loads(one.stdout.readline()) for name, one in started.items()}
    chunks = {name: list(one["chunks"].values()) for name, one in found.items()}
    honest = sum(CLIENTS.values())
    share = sum(map(sum, chunks.values())) / (honest + FLOOD)
    least = {name: min(chunks[name]) / share for name in CLIENTS}
    wrong = sum(one["wrong"] for one in found.values())
    rows = sum(map(sum, chunks.values()))
    tell(f"{rows / SECONDS:.1f} chunks/s, {rows} in all, {wrong} wrong; the least share by dialect")
    tell(", ".join(f"{name}: {value:.2f}" for name, value in least.items()))
    assert wrong == 0
    assert min(least.values()) >= 0.8


def test_a_thousand_idle_connections_of_all_dialects_cost_nothing(openpi_client: Any) -> None:
    paths = ("", "/openpi/policy", "/v1/realtime/robot/openpi", "/vla-eval")
    with command(*SERVE) as (process, place):

        async def main() -> float:
            opened: list[ClientConnection] = []
            for i in range(IDLE):
                path = paths[i % len(paths)]
                opened.append(await connect(place + path, compression=None, ping_interval=None))
                if path != "/vla-eval":
                    await opened[-1].recv()
            began, used = time.monotonic(), ticks(process.pid)
            await asyncio.sleep(IDLE_S)
            share = (ticks(process.pid) - used) / TICKS / (time.monotonic() - began)
            client = await asyncio.to_thread(
                openpi_client.WebsocketClientPolicy, place.removeprefix("ws://")
            )
            assert client.get_server_metadata()
            client._ws.close()
            await asyncio.gather(*(one.close() for one in opened))
            return share

        share = asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    tell(f"{IDLE} idle connections take {100 * share:.2f} % of a core")
    assert share < 0.01


def ticks(pid: int) -> int:
    """Ticks of the clock that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
