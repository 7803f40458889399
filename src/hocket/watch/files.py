"""Answers to requests for pages and videos, whole or by ranges of bytes."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from websockets.datastructures import Headers
from websockets.http11 import Response

from hocket.results.page.document import asset, live_page

LONGEST_RANGE = 4 << 20
"""Bytes of a video in one answer; players ask on."""
_TYPES = {"page.html": "text/html", "style.css": "text/css", "page.js": "text/javascript"}


def page_file(name: str, token: str) -> Response | None:
    """A file of the page itself, whose links carry the token; None for any other name."""
    if name not in _TYPES:
        return None
    text = live_page(f"/{quote(token)}/") if name == "page.html" else asset(name)
    return answer(HTTPStatus.OK, text.encode(), f"{_TYPES[name]}; charset=utf-8")


def video(path: Path, wanted: str | None) -> Response:
    """The bytes of a video that a Range header asks for, or all. A file that grows answers with
    what it has by now."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            span = _span(wanted, size)
            if span is None:
                refused = answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", "video/mp4")
                refused.headers["Content-Range"] = f"bytes */{size}"
                return refused
            first, last = span
            file.seek(first)
            body = file.read(last - first + 1)
    except OSError:
        return text(HTTPStatus.NOT_FOUND, "This video is gone.\n")
    if wanted is None and last == size - 1:
        found = answer(HTTPStatus.OK, body, "video/mp4")
    else:
        found = answer(HTTPStatus.PARTIAL_CONTENT, body, "video/mp4")
        found.headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{size}"
    found.headers["Accept-Ranges"] = "bytes"
    return found


def growth(path: Path | None, since: int) -> Response:
    """What a growing video has since a byte: 204 where nothing is new, 205 where it no longer
    grows. Both are no errors, which a browser would complain of."""
    try:
        if path is None:
            raise FileNotFoundError
        with open(path, "rb") as file:
            file.seek(since)
            body = file.read(LONGEST_RANGE)
    except OSError:
        return answer(HTTPStatus.RESET_CONTENT, b"", "video/mp4")
    status = HTTPStatus.OK if body else HTTPStatus.NO_CONTENT
    return answer(status, body, "video/mp4")


def _span(wanted: str | None, size: int) -> tuple[int, int] | None:
    """The first and the last byte to send; None where there is no such byte."""
    if wanted is None:
        return (0, min(size, LONGEST_RANGE) - 1) if size else None
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted.strip())
    if found is None or found.group(1) == found.group(2) == "":
        return None
    if found[1] == "":
        first, last = max(0, size - int(found[2])), size - 1
    else:
        first = int(found[1])
        last = min(size - 1, int(found[2]) if found[2] else size - 1)
    if not first <= last < size:
        return None
    return first, min(last, first + LONGEST_RANGE - 1)


def text(status: HTTPStatus, words: str) -> Response:
    return answer(status, words.encode(), "text/plain; charset=utf-8")


def answer(status: HTTPStatus, body: bytes, kind: str) -> Response:
    """A response that no other site can use, and that runs no script but ours."""
    headers = Headers(
        {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Security-Policy": (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                "img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; "
                "form-action 'none'; frame-ancestors 'none'"
            ),
        }
    )
    return Response(status, status.phrase, headers, body)
