import html

from hypothesis import given
from hypothesis import strategies as st

from hocket.results.page.markup import Markup, breakable, file_link, join, tag
from hocket.system.text import printable


@given(st.text())
def test_text_reads_back_as_it_may_be_shown_and_opens_no_element(text: str) -> None:
    made = tag("p", text)
    inside = made.removeprefix("<p>").removesuffix("</p>")
    assert "<" not in inside
    assert html.unescape(inside) == html.unescape(html.escape(printable(text)))


@given(st.text())
def test_attributes_cannot_be_left(text: str) -> None:
    made = tag("p", title=text)
    value = made.removeprefix('<p title="').removesuffix('"></p>')
    assert not set('"<>') & set(value)


def test_markup_is_not_escaped_twice_and_plain_sums_of_it_are_escaped() -> None:
    inner = tag("b", "x & y")
    assert tag("p", inner) == "<p><b>x &amp; y</b></p>"
    assert "&lt;b&gt;" in tag("p", inner + "")
    assert isinstance(join(inner, "<"), Markup)


def test_names_with_underscores_and_flags_become_attributes() -> None:
    assert tag("video", class_="x", data_id=3, controls=True, muted=False, poster=None) == (
        '<video class="x" data-id="3" controls></video>'
    )


@given(st.text())
def test_link_to_a_file_neither_climbs_nor_names_a_scheme(path: str) -> None:
    link = file_link(path)
    assert ":" not in link
    assert not link.startswith("/")
    assert ".." not in link.split("/")


def test_odd_camera_names_still_lead_to_their_file() -> None:
    assert file_link("episodes/a/0/cam #1?.mp4") == "episodes/a/0/cam%20%231%3F.mp4"


@given(st.text())
def test_breakable_name_reads_the_same(name: str) -> None:
    assert breakable(name).replace("<wbr/>", "") == html.escape(printable(name))
