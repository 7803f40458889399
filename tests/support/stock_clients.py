"""Stock clients of one dialect, on threads of one process: openpi-client's own, by openpi's path,
SGLang's or vLLM-Omni's, or vla-eval's own connection. Each asks again once it has its answer, and
looks at every number of it. `flood` keeps connections busy without ever waiting for an answer.

    python stock_clients.py DIALECT HOST:PORT FIRST COUNT

Says `ready` once all are connected, begins at a line on standard input, ends at the next one, and
then prints the chunks that each client got and the wrong rows of all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import zlib
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from vla_eval.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PATHS = {
    "openpi": "",
    "sglang": "/openpi/policy",
    "vllm-omni": "/v1/realtime/robot/openpi",
    "vla-eval": "/vla-eval",
    "flood": "",
}
LENGTH, REPLAN = 4, 2

begin, end = threading.Event(), threading.Event()


def seen(client: int, turn: int) -> tuple[np.ndarray, np.ndarray, str]:
    """A picture, a state and a prompt that no other request has."""
    picture = np.full((224, 224, 3), client, np.uint8)
    picture[-1, -1, 1] = (client * 7 + turn * 31) % 256
    return picture, np.array([client, turn], np.float32), f"client {client}, turn {turn}"


def row(client: int, turn: int, step: int) -> list[int]:
    picture, _, prompt = seen(client, turn)
    return [client, turn, step, int(picture[-1, -1, 1]), zlib.crc32(prompt.encode()) % 65521]


class Client:
    """One client of OpenPI's protocol."""

    def __init__(self, dialect: str, place: str, number: int) -> None:
        self.dialect, self.number = dialect, number
        self.chunks, self.wrong, self.turn = 0, 0, 0
        self.socket: Any = None
        if dialect == "flood":
            # openpi-client's own would wait for each answer.
            self.socket = connect(f"ws://{place}", compression=None, max_size=None)
            self.socket.recv()
        elif dialect != "vla-eval":
            self.policy = WebsocketClientPolicy(host=f"ws://{place}{PATHS[dialect]}")
        self.place = place

    def request(self) -> dict[str, Any]:
        picture, state, prompt = seen(self.number, self.turn)
        asked: dict[str, Any] = {
            "observation/image": picture,
            "observation/state": state,
            "prompt": prompt,
        }
        if self.dialect in ("sglang", "vllm-omni"):
            asked["seed"] = self.seed = self.number * 1000 + self.turn
        if self.dialect == "vllm-omni":
            asked["session_id"] = f"session {self.number}"
        return asked

    def work(self) -> None:
        if self.dialect == "vla-eval":
            asyncio.run(self.step())
            return
        if self.dialect == "flood":
            threading.Thread(target=self.drain, daemon=True).start()
        begin.wait()
        while not end.is_set():
            self.turn += 1
            if self.dialect == "flood":
                self.socket.send(msgpack_numpy.packb(self.request()))
                continue
            answer = self.policy.infer(self.request())
            actions = answer if self.dialect == "vllm-omni" else answer["actions"]
            right = [row(self.number, self.turn, step) for step in range(LENGTH)]
            is_right = np.asarray(actions)[:, :5].tolist() == right
            if self.dialect in ("sglang", "vllm-omni"):
                is_right &= set(actions[:, 5]) == {self.seed % 65521}
            self.wrong += not is_right
            self.chunks += 1

    def drain(self) -> None:
        try:
            while isinstance(self.socket.recv(), bytes):
                self.chunks += 1
        except ConnectionClosed:
            return

    async def step(self) -> None:
        """A step at a time, as vla-eval's harness does: the server keeps the chunk."""
        connection = Connection(f"ws://{self.place}{PATHS[self.dialect]}")
        await connection.connect()
        await asyncio.to_thread(begin.wait)
        while not end.is_set():
            if self.turn % 20 == 0:  # an episode ends and another begins, within a chunk or not
                if self.turn:
                    await connection.end_episode({})
                await connection.start_episode({"task": {"name": "mark"}})
                first = self.turn + 1
            self.turn += 1
            picture, state, prompt = seen(self.number, self.turn)
            action = await connection.act(
                {"images": {"agentview": picture}, "state": state, "task_description": prompt}
            )
            late = (self.turn - first) % REPLAN
            right = row(self.number, self.turn - late, late)
            self.wrong += np.asarray(action["actions"])[:5].tolist() != right
            self.chunks += not late
        await connection.close()


def main() -> None:
    dialect, place, first, count = sys.argv[1:]
    clients = [Client(dialect, place, int(first) + i) for i in range(int(count))]
    threads = [threading.Thread(target=one.work, daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    begin.set()
    sys.stdin.readline()
    end.set()
    if dialect != "flood":
        for thread in threads:
            thread.join()
    chunks = {one.number: one.chunks for one in clients}
    sys.stdout.write(
        json.dumps({"chunks": chunks, "wrong": sum(one.wrong for one in clients)}) + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
