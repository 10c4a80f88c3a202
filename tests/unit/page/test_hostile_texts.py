"""Whatever a program names its functions, files, tags and notes: a browser shows it as text."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser

from ridgeline.records.runs import write_notes
from tests.unit.hostile import MARKUP, filled, rotated
from tests.unit.page.conftest import Open, Opened
from tests.unit.page.hostile_pages import claims_of, faults, pages, texts_of, used
from tests.unit.report import made_up_findings, made_up_run
from tests.unit.viewer.served import made, serving

pytestmark = pytest.mark.slow

MANY = 200


def test_the_texts_are_as_many_as_promised() -> None:
    assert len(set(MARKUP)) >= MANY


def test_markup_that_is_obeyed_would_be_seen(opened: Open) -> None:
    """Without this the tests below could pass because nothing is ever found."""
    page = opened("<title>x</title><img src=data:, onerror=alert(1)><p onclick=x>text</p>")
    page.page.wait_for_timeout(200)
    assert page.complaints == ["1"]
    assert len(faults(page.page)) >= 3


@pytest.mark.parametrize("by", [0, 97, 211])
def test_every_text_of_a_result_stays_text(opened: Open, by: int) -> None:
    """Each text field of four kinds of results has another text; `make reliability` puts each text
    into each field."""
    for name, text in pages(by):
        page = opened(text)
        used(page.page)
        assert page.complaints == faults(page.page) == [], name
        assert [url.partition(":")[0] for url in page.requests] == ["file"], name
        if name == "run":
            shown = texts_of(page.page, "ol.findings > li > p:first-child")
            assert shown
            for claim in claims_of(by)[: len(shown)]:
                assert any(claim in one for one in shown), claim


def test_two_hundred_runs_with_hostile_texts_are_listed_as_text(
    browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    shown = {}
    for i, text in enumerate(MARKUP[:MANY]):
        text = text.replace("\0", "")
        summary = replace(
            made_up_run.summary(),
            findings=filled(made_up_findings.findings(), rotated(MARKUP, i)),
        )
        run = made(folder, f"1115-0102{i:03d}-run", program=text, summary=summary)
        write_notes(run, [text.replace(",", "")[:40]], text)
        shown[run.name] = text
    context = browser.new_context()
    opened = Opened(context.new_page())
    page = opened.page
    with serving(folder) as served:
        page.goto(served.viewer.address())
        assert page.locator("#runs tbody tr").count() == MANY
        notes = page.locator("#runs tbody tr").evaluate_all(
            "rows => rows.map((row) => [row.querySelector('td.name').innerText,"
            " row.querySelector('textarea').value])"
        )
        for name, note in notes:
            run_name = next(one for one in shown if one in name or name.strip() in one)
            assert note == shown[run_name].replace("\r", "\n")
        assert (
            page.locator("#runs :is(img, iframe, object, embed, form, link, script, svg)").count()
            == 0
        )
        assert all(url.startswith(served.origin) for url in opened.requests)
    context.close()
    assert opened.complaints == []
