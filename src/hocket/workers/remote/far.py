"""The program at the far end: a relay behind a carrier.

python code.zip stdio
python code.zip ws [HOST:]PORT      the key is in the environment variable HOCKET_KEY
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hocket.workers.remote.carriers import Stdio
from hocket.workers.remote.relay import serve


def main(arguments: Sequence[str]) -> int:
    """Serve one connection."""
    if list(arguments) == ["stdio"]:
        serve(Stdio())
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
    listen(key, host or "127.0.0.1", int(port), serve, _tell_port)
    return 0


def _tell_port(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
