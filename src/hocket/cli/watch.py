"""`hocket watch`, and what `--watch` adds to the verbs that make a run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from hocket.cli.flags.parse import parse
from hocket.errors import RunFolderError, UsageError

if TYPE_CHECKING:
    from hocket.watch.server import WatchServer


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show a run in the browser, live: does it move and when does it end, success so far with its
    interval, outcomes as they come, failures with their videos, which lane hangs, and what the
    policy sees. A folder with several runs is shown as a list of them. It reads the run's folder
    from a process of its own, so that the run never waits for it; Ctrl-C ends it alone."""

    folder: Positional[Annotated[Path, arg(metavar="RUN|FOLDER")]] = Path("runs")
    """A run's folder, running or not, or a folder with runs in it."""
    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1"
    """Where to listen. Anything but loopback wants a key or a certificate; ssh -L needs neither."""
    port: int = 0
    """0 takes any free port, and says which."""
    key_file: Annotated[str | None, arg(metavar="FILE")] = None
    """A file whose first line is the token in the address, instead of one made anew each time."""
    tls_cert: Annotated[str | None, arg(metavar="FILE")] = None
    """Certificate chain: serve https:// instead of http://."""
    tls_key: Annotated[str | None, arg(metavar="FILE")] = None
    """The certificate's key, where it is a file of its own."""


def run(arguments: Sequence[str]) -> int:
    """Show until SIGTERM or Ctrl-C."""
    flags = parse(Watch, arguments, verb="watch")
    from hocket import cli
    from hocket.system.exposure import check_exposure, load_tls
    from hocket.watch.guard import new_token, read_key
    from hocket.watch.process import serve
    from hocket.watch.server import Watching, WatchServer

    if not flags.folder.is_dir():
        raise RunFolderError(
            f"There is no folder {str(flags.folder)!r}. Name a run's folder, or one with runs."
        )
    key = None if flags.key_file is None else read_key(flags.key_file)
    tls = load_tls(flags.tls_cert, flags.tls_key)
    check_exposure(
        flags.host,
        is_guarded=key is not None or tls is not None,
        advice="Give a --key-file or a --tls-cert; or stay on loopback, and come by ssh: ssh -L "
        "PORT:localhost:PORT HOST",
    )
    settings = Watching(token=key or new_token(), host=flags.host, port=flags.port, tls=tls)

    def say(server: WatchServer) -> None:
        sys.stderr.write(f"Watch {flags.folder} at {server.address}\nCtrl-C ends the page alone.\n")
        sys.stderr.flush()

    try:
        serve(WatchServer(flags.folder.absolute(), settings), say)
    except (OSError, OverflowError) as exc:  # the second for a port that is none
        why = getattr(exc, "strerror", None) or exc
        raise UsageError(f"The page cannot be served on {flags.host}:{flags.port}: {why}") from exc
    return cli.OK


@contextlib.contextmanager
def shown(folder: Path, *, wanted: bool, is_one_run: bool = True) -> Iterator[None]:
    """Show a folder in the browser for as long as the block lasts, where it is wanted."""
    if not wanted:
        yield
        return
    from hocket.watch.process import Beside

    with Beside(folder.absolute(), is_one_run=is_one_run) as page:
        sys.stderr.write(f"Watch it at {page.address}\n")
        sys.stderr.flush()
        yield
    sys.stderr.write(
        f"The page has ended with the run. Show it again with: hocket watch {folder}\n"
    )
