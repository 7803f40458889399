"""Make the pictures of the page that stand in the docs: real runs, in a headless Chromium.

python tools/page_pictures.py [FOLDER]        (docs/pictures)
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

import hocket
from hocket.results.page.report_page import write_report_page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.chromium import Browser, Page, browser  # noqa: E402
from support.watched import served  # noqa: E402

ENV, POLICY, EPISODES = "metaworld:mt10", "reference", 4
QUALITY = 82


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        runs = Path(scratch) / "runs"
        for replan in (4, 8, 16):
            folder = runs / f"replan-{replan}"
            hocket.evaluate(
                env=ENV, policy=POLICY, episodes=EPISODES, lanes=2, replan=replan, out=folder
            )
            write_report_page(folder)
        with browser(Path(scratch) / "profile") as chromium:
            inside(chromium, runs / "replan-8" / "report.html", target / "episode.webp")
            between(chromium, runs, target / "runs.webp")


def inside(chromium: Browser, report: Path, picture: Path) -> None:
    """An episode of a run, in the middle of a chunk."""
    with chromium.page(width=1280, height=700) as page:
        page.go(f"{report.as_uri()}#e1@0.5")
        page.until("hocket.player.look && hocket.player.isFilmed && !hocket.player.video.seeking")
        page.until("!!document.querySelector('.seen video')?.readyState")
        shoot(page, picture)


def between(chromium: Browser, runs: Path, picture: Path) -> None:
    """The runs of a folder, against one of them."""
    with served(runs) as address, chromium.page(width=1280, height=440) as page:
        page.go(address)
        page.until("document.querySelectorAll('#run-list td a').length === 3")
        page.ask("document.querySelector('.pin').click()")
        page.until("[...hocket.runs.pairs.values()].filter((pair) => pair).length === 2")
        shoot(page, picture)


def shoot(page: Page, picture: Path) -> None:
    """What the window shows, once it is painted."""
    page.ask("new Promise((done) => setTimeout(done, 500))")
    shot = page.call("Page.captureScreenshot", format="webp", quality=QUALITY)
    picture.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()
