"""What others write is shown without being obeyed."""

from __future__ import annotations

import io
import json
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from hocket.results.page.document import document
from hocket.results.terminal import Console
from hocket.system.text import printable

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202e"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202e"


def test_escapes_are_written_out_and_nothing_else_is_touched() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("schräg 日本\n\tC:\\x1b") == "schräg 日本\n\tC:\\x1b"


@given(st.text(st.characters()))
def test_any_text_can_be_encoded_and_commands_nothing(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(c in "\n\t" or (ord(c) >= 32 and not 127 <= ord(c) < 160) for c in shown)
    assert printable(shown) == shown


def test_console_writes_names_out_and_keeps_its_own_colours() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=100)
    table = Table()
    table.add_column("task")
    table.add_row(HOSTILE, style="green")
    table.add_row("pick:fire:place")
    console.print(table)
    found = stream.getvalue()
    assert SHOWN in found
    assert "pick:fire:place" in found
    assert "\x1b[31m" not in found
    assert "\x1b[32m" in found


def test_page_has_no_control_characters() -> None:
    page = document({"title": HOSTILE, "kicker": HOSTILE, "said": HOSTILE}, summary=HOSTILE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    assert page.count(SHOWN) == 4, "two titles, a kicker and the summary"
    assert json.dumps(SHOWN) in page
