import html
import json

from hypothesis import given
from hypothesis import strategies as st

from hocket.results.page.document import as_json, document, file_link
from hocket.system.text import printable


@given(st.text())
def test_text_reads_back_as_it_may_be_shown_and_opens_no_element(text: str) -> None:
    made = as_json({"said": [text], text: 1})
    assert "<" not in made
    found = json.loads(made)
    assert found.pop("said") == [printable(text)]
    assert [*found] == ([] if text == "said" else [printable(text)])


def test_what_is_no_finite_number_is_null() -> None:
    assert as_json({"a": [float("nan"), float("-inf"), 1.5]}) == '{"a":[null,null,1.5]}'


@given(st.text())
def test_a_title_cannot_leave_its_element(title: str) -> None:
    page = document({"title": title, "kicker": ""})
    shown = page.partition("<title>")[2].partition("</title>")[0]
    assert shown == html.escape(printable(title))
    assert page.count("<script") == 2


def test_a_title_is_no_place_for_what_a_page_is_filled_with() -> None:
    page = document({"title": "<!--head--><!--foot-->", "kicker": ""}, summary="here")
    assert page.count("Content-Security-Policy") == 1
    assert page.count('id="data"') == 1


@given(st.text())
def test_link_to_a_file_neither_climbs_nor_names_a_scheme(path: str) -> None:
    link = file_link(path)
    assert ":" not in link
    assert not link.startswith("/")
    assert ".." not in link.split("/")


def test_odd_camera_names_still_lead_to_their_file() -> None:
    assert file_link("episodes/a/0/cam #1?.mp4") == "episodes/a/0/cam%20%231%3F.mp4"
