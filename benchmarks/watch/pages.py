"""Pages of a viewer in a real Chromium.

    python benchmarks/watch/pages.py ADDRESS COUNT

opens the pages, prints a line once all are drawn, and at the end of its standard input one with
how many changes and pictures each of them took.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.chromium import browser


def main() -> None:
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        chromium = stack.enter_context(browser(Path(scratch)))
        pages = [stack.enter_context(chromium.page()) for _ in range(int(sys.argv[2]))]
        for page in pages:
            # All of them are looked at, though one window shows one tab.
            page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            page.go(sys.argv[1])
        for page in pages:
            page.until("window.hocket && hocket.state.received > 0")
        print("ready", flush=True)
        sys.stdin.read()
        took = "[hocket.state.received, hocket.state.pictures || 0]"
        print(json.dumps([page.ask(took) for page in pages]), flush=True)


if __name__ == "__main__":
    main()
