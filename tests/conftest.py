"""What every test can rely on, however the tests were started."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from support import parts, processes
from support.chromium import Browser, browser

MARK = "HOCKET_TEST_PROCESS"
GRACE_S = 20.0
"""Seconds for what has been told to end; chosen by hand."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # Its siblings use the other cores: threads of torch would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes depends on what else the machine does. `make test` tries other examples
# each time; `make test-all` tries eight times as many (--hypothesis-profile=thorough).
settings.register_profile("always", deadline=None, print_blob=True, max_examples=25)
settings.register_profile("thorough", settings.get_profile("always"), max_examples=200)
settings.load_profile("always")


def pytest_configure() -> None:
    """Let Ctrl-C through: a shell that starts the tests in the background (`make test &`) has
    SIGINT ignored, children inherit that over exec, and Python then installs no handler."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Let Ctrl-C end the tests, but not a test that plays Ctrl-C and lets it through."""
    try:
        return (yield)
    except KeyboardInterrupt as exc:
        last = traceback.extract_tb(exc.__traceback__)[-1]
        if (last.line or "").startswith("raise KeyboardInterrupt"):
            raise AssertionError(f"KeyboardInterrupt, raised in line {last.lineno}.") from exc
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    parts.demand(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    parts.demand(report)
    return report


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="session", autouse=True)
def no_process_stays_behind() -> Iterator[None]:
    """End what tests left running, whoever its parent is by then, and say whose it was."""
    # The id of this process: other sessions may run beside this one.
    os.environ[MARK] = str(os.getpid())
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := _left_running()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, "Tests left processes running:\n" + "\n".join(left.values())


def _left_running() -> dict[int, str]:
    """Processes of this session's tests, each with its command and the test that started it."""
    own = os.getpid()
    pids = processes.started_with(MARK, str(own)) | set(processes.children(own))
    stories = {}
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        # Python's own ends with this process.
        if "multiprocessing.resource_tracker" not in command:
            test = [e.decode() for e in environ if e.startswith(b"PYTEST_CURRENT_TEST=")]
            stories[pid] = " ".join([str(pid), command[:200], *test])
    return stories
