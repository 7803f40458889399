"""Servers on threads of their own, and the real OpenPI client."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from hocket.adapters.policies.openpi.policy import OpenPI
from hocket.core.contracts.policy import Policy
from hocket.serve.backend import PolicyBackend, PolicyOptions
from hocket.serve.metrics import Metrics
from support.parts import missing
from support.running_server import Running, ServePolicy, running
from support.wire_clients import Connect, open_client


@pytest.fixture
def serve_policy() -> Iterator[ServePolicy]:
    """`serve_policy(policy, **options)`: a server of hocket's, ended after the test."""
    with ExitStack() as stack:

        def start(
            policy: Policy, *, listening: dict[str, Any] | None = None, **options: Any
        ) -> Running:
            metrics = Metrics()
            settings = PolicyOptions(**{"name": "test", "warm_up": False, **options})
            backend = PolicyBackend(policy, settings, metrics)
            return stack.enter_context(running(backend, metrics, **(listening or {})))

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`connect(*servers, **settings)`: a client of hocket's, closed after the test."""
    with ExitStack() as stack:

        def start(*servers: Running, **settings: Any) -> OpenPI:
            return stack.enter_context(closing(open_client(*servers, **settings)))

        yield start


@pytest.fixture(scope="session")
def openpi_client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package openpi-client from PyPI. Its pin of numpy<2 is out of date, so it is installed
    apart and without its dependencies, where it is not installed already."""
    if importlib.util.find_spec("openpi_client") is None:
        target = tmp_path_factory.mktemp("openpi-client")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        done = subprocess.run(
            [*command, str(target), "openpi-client==0.1.2"],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if done.returncode:
            pytest.skip(missing("openpi-client", f"it cannot be installed: {done.stderr[-300:]}"))
        sys.path.append(str(target))
    return importlib.import_module("openpi_client.websocket_client_policy")
