"""The program at the far end: joins a carrier to a relay.

python code.zip stdio
python code.zip ws [HOST:]PORT      the key is in the environment variable HOCKET_KEY
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from hocket.workers.remote.carriers import Carrier, Join, Stdio
from hocket.workers.remote.relay import serve

_LAST_S = 5.0
"""Seconds for the last message to leave."""


def main(arguments: Sequence[str]) -> int:
    """Serve one connection."""
    if list(arguments) == ["stdio"]:
        _relay(Stdio())
        return 0
    if len(arguments) != 2 or arguments[0] != "ws":
        sys.stderr.write((__doc__ or "") + "\n")
        return 2
    from hocket.workers.remote.websocket import KEY_VARIABLE, listen

    # Out of the environment, which envs and whatever they start inherit.
    key = os.environ.pop(KEY_VARIABLE, "")
    if not key:
        sys.stderr.write(f"There is no key: set {KEY_VARIABLE}.\n")
        return 2
    host, _, port = arguments[1].rpartition(":")
    listen(key, host or "127.0.0.1", int(port), _relay, _tell_port)
    return 0


def _relay(carrier: Carrier) -> None:
    ours, theirs = socket.socketpair()
    join = Join(carrier, theirs)
    serve(ours)
    join.wait(_LAST_S)


def _tell_port(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
