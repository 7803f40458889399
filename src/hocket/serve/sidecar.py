"""The child's side of a sidecar: serves one policy on a local socket, for the parent alone.

Run by `hocket.adapters.policies.sidecar` in another interpreter. What to serve comes as one line of
JSON on standard input; the end of that stream is the end of the parent, and of this process.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from hocket.errors import ConfigError, MissingExtraError
from hocket.runs.policies import build_policy, require_policy
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from hocket.serve.server import PolicyServer, ServeOptions
from hocket.system.exposure import serve_until_signal
from hocket.system.text import account
from hocket.system.waits import awaited

_LOOK_S = 0.2
"""Seconds between two looks at what is awaited."""


def main() -> None:
    """Build the policy, serve it, say so; or say in a sentence why it is refused."""
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    # What the policy prints must not be taken for what we say.
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(said: object) -> None:
        # One write, so that lines of two threads do not mix.
        os.write(answers, (json.dumps(said) + "\n").encode())

    threading.Thread(target=_end_with_parent, daemon=True).start()
    built = threading.Event()
    threading.Thread(target=_tell_waits, args=(answer, built), daemon=True).start()
    try:
        policy = require_policy(build_policy(order["policy"], order["config"]), order["policy"])
    except (ConfigError, MissingExtraError) as exc:
        answer({"refused": str(exc)})
        sys.exit(1)
    except BaseException as exc:  # noqa: BLE001 - the parent repeats what is printed last
        sys.exit(account(exc))
    finally:
        built.set()
    metrics = Metrics()
    # The engine warms a policy up, makes batches and watches over calls itself: no waiting here.
    options = PolicyOptions(
        name=order["policy"], warm_up=False, max_queue=1 << 20, infer_timeout_s=math.inf
    )
    backend = PolicyBackend(policy, options, metrics)
    listening = ServeOptions(unix_path=order["socket"], max_message_bytes=1 << 30, drain_s=1.0)
    server = PolicyServer(backend, listening, metrics)
    asyncio.run(serve_until_signal(server, lambda _: answer({"ready": True})))


def _tell_waits(answer: Callable[[object], None], built: threading.Event) -> None:
    """Tell the parent what is awaited here until the policy is built."""
    told: tuple[str, ...] = ()
    while not built.wait(_LOOK_S):
        if (now := awaited()) != told:
            told = now
            answer({"awaited": told})


def _end_with_parent() -> None:
    while sys.stdin.readline():
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
