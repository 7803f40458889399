"""`hocket serve`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from hocket.cli.flags.parse import parse_with_policy
from hocket.cli.flags.values import Bytes, Name, Pairs
from hocket.errors import ConfigError, UsageError
from hocket.system.exposure import check_exposure, load_tls, serve_until_signal

if TYPE_CHECKING:
    from hocket.serve.backend import Backend
    from hocket.serve.metrics import Metrics
    from hocket.serve.server import PolicyServer

_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve a policy over OpenPI's protocol. Requests from all connections share batches, though
    clients notice nothing of it; /healthz and /metrics answer on the same port. With several
    openpi:// addresses as the policy it is a gateway in front of those servers."""

    policy: Name
    """What decides: any policy that eval takes; or openpi://a:8000,openpi://b:8000."""
    protocol: Literal["openpi", "vla-eval"] = "openpi"
    """What clients speak, OpenPI's protocol or that of vla-eval's harness, unless their path says:
    /vla-eval, or /openpi/policy and /v1/realtime/robot/openpi, those of SGLang and vLLM-Omni."""
    keys: Pairs = field(default_factory=dict)
    """With vla-eval: the client's key for a key of the policy's, where names do not tell."""
    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1"
    """Where to listen. Anything but loopback wants a key, or --insecure."""
    port: int = 8000
    """0 takes any free port, and says which."""
    socket: Annotated[Path | None, arg(metavar="PATH")] = None
    """Listen on a local socket instead of host and port."""
    key_file: Annotated[str | None, arg(metavar="FILE")] = None
    """Keys that clients must send, one a line; the comment above one, after #, is its client's name
    in logs and /metrics. HOCKET_API_KEY holds one too."""
    insecure: bool = False
    """Serve without a key beyond loopback, to anyone who can connect."""
    tls_cert: Annotated[str | None, arg(metavar="FILE")] = None
    """Certificate chain: serve wss:// instead of ws://."""
    tls_key: Annotated[str | None, arg(metavar="FILE")] = None
    """The certificate's key, where it is a file of its own."""
    prompt: str = ""
    """Instruction for requests that bring none."""
    metadata: Annotated[Path | None, arg(metavar="FILE")] = None
    """A YAML file whose content is sent to every client first."""
    action_size: Annotated[int | None, arg(metavar="A")] = None
    """Numbers a step, for policies that adapt to an env (random, zero)."""
    seed: int = 0
    """Seed of the noise for requests that bring none of their own."""
    policy_python: Annotated[str | None, arg(metavar="PATH")] = None
    """Interpreter for the policy, where it needs another one (3.10 or later) than this:
    path/to/venv/bin/python. hocket need not be installed there."""
    skip_warm_up: bool = False
    """Do not try every batch size once before clients are answered."""
    infer_timeout_s: Annotated[float | None, arg(name="infer-timeout", metavar="SECONDS")] = None
    """A policy that has not answered a batch for this long hangs: clients are told, and further
    requests are refused in words, since a thread cannot be ended; a policy in a process of its own
    (--policy-python) is started anew. The default is 300 s, or 100 times what such a batch usually
    takes, whichever is more; warm-up may take an hour."""
    max_message: Bytes = 64 << 20
    """Longest request. A policy that says what it reads takes none that is longer than it can need,
    and 16 MiB."""
    max_connections: int = 1024
    """More are refused."""
    max_queue: int = 1024
    """Observations that may wait; more are refused, in words."""
    log: Literal["errors", "requests"] = "errors"
    """Write a line for each request that failed, or for every one."""
    drain_s: Annotated[float, arg(name="drain", metavar="SECONDS")] = 30.0
    """On SIGTERM, time for what is under way."""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    parsed = parse_with_policy(Serve, arguments, verb="serve")
    flags = parsed.flags
    from hocket import cli
    from hocket.serve.metrics import Metrics
    from hocket.serve.server import PolicyServer, ServeOptions, load_keys, log_to_stderr

    log_to_stderr()
    if not 0 <= flags.port <= _LAST_PORT:
        raise ConfigError(f"port is {flags.port}; it must be between 0 and {_LAST_PORT}.")
    keys = load_keys(flags.key_file)
    if flags.socket is None:
        check_exposure(
            flags.host,
            is_guarded=bool(keys) or flags.insecure,
            advice="Give a --key-file (or HOCKET_API_KEY), or say --insecure to serve anyone who "
            "can connect.",
        )
    listening = ServeOptions(
        host=flags.host,
        port=flags.port,
        unix_path=None if flags.socket is None else str(flags.socket),
        keys=keys,
        protocol=flags.protocol,
        tls=load_tls(flags.tls_cert, flags.tls_key),
        max_message_bytes=flags.max_message or sys.maxsize,
        max_connections=flags.max_connections,
        drain_s=flags.drain_s,
        logs_requests=flags.log == "requests",
    )
    metrics = Metrics()
    backend = _backend(flags, parsed.config["policy_config"], metrics)
    scheme = "wss" if listening.tls else "ws"

    def say_ready(server: PolicyServer) -> None:
        address = flags.socket or f"{scheme}://{flags.host}:{server.port}"
        sys.stderr.write(f"hocket: serving {flags.policy} on {address}\n")
        sys.stderr.flush()

    try:
        server = PolicyServer(backend, listening, metrics)
        asyncio.run(serve_until_signal(server, say_ready))
    except OSError as exc:
        address = flags.socket or f"{flags.host}:{flags.port}"
        raise UsageError(f"The server cannot listen on {address}: {exc.strerror or exc}") from exc
    return cli.OK


def _backend(flags: Serve, config: dict[str, Any], metrics: Metrics) -> Backend:
    from hocket.adapters.policies.openpi.policy import OpenPI
    from hocket.runs.policies import build_policy, require_policy
    from hocket.serve.backend import PolicyOptions
    from hocket.serve.gateway import Gateway
    from hocket.serve.vla_eval import VlaEvalBackend

    name = flags.policy
    if flags.policy_python is not None:
        name, config = f"sidecar:{name}", {"python": flags.policy_python, "config": config}
    policy = build_policy(name, config)
    if isinstance(policy, OpenPI) and flags.protocol == "openpi":
        return Gateway(policy.servers(), metrics, max_queue=flags.max_queue)
    policy = require_policy(policy, flags.policy)
    options = PolicyOptions(
        name=flags.policy,
        metadata=_metadata(flags.metadata),
        prompt=flags.prompt,
        action_size=flags.action_size,
        seed=flags.seed,
        max_queue=flags.max_queue,
        warm_up=not flags.skip_warm_up,
        infer_timeout_s=flags.infer_timeout_s,
    )
    return VlaEvalBackend(policy, options, metrics, flags.keys)


def _metadata(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    from hocket.system.bounded_yaml import read_yaml

    found = read_yaml(file, "The metadata")
    if not isinstance(found, dict):
        raise ConfigError(f"The metadata {str(file)!r} must be keys with values.")
    return found
