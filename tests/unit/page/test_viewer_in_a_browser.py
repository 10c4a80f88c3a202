"""`ridgeline view` in a real browser: what a person does with it, and what other pages and hostile
runs try to do."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from ridgeline.records.runs import notes_of, write_notes
from ridgeline.viewer.server import REFUSAL
from tests.unit.page.conftest import FLAGS, chromium
from tests.unit.report.made_up_trace import NASTY
from tests.unit.viewer.served import (
    Served,
    add_steps,
    made,
    made_running,
    serving,
    write_capture,
    write_run_file,
)

pytestmark = pytest.mark.slow

RUN = "1115-010203-train"
TIMEOUT_MS = 15_000
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".ridgeline" / "runs"


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """Return a new page, and a list that gets whatever it complains about or asks a person."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    return page, complaints


def test_a_person_tags_notes_searches_compares_and_deletes(
    folder: Path, context: BrowserContext
) -> None:
    first, second = made(folder, "first", step_ms=100.0), made(folder, "second", step_ms=80.0)
    page, complaints = watched(context)
    with serving(folder) as served:
        page.goto(served.viewer.address())
        assert page.url == f"{served.origin}/"
        page.get_by_label("tags of first").fill("bf16, big")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("saved")
        page.get_by_label("notes on first").fill("two\nlines")
        page.keyboard.press("Tab")
        expect(page.get_by_role("status")).to_have_text("saved")
        assert (notes_of(first).tags, notes_of(first).text) == (("bf16", "big"), "two\nlines")
        page.reload()
        expect(page.get_by_label("notes on first")).to_have_value("two\nlines")

        page.get_by_label("Search").fill("LINES")
        expect(page.locator("#runs tbody tr:visible")).to_have_count(1)
        page.get_by_label("Search").fill("")

        page.get_by_label("choose first").check()
        expect(page.get_by_role("button", name="Compare two")).to_be_disabled()
        page.get_by_label("choose second").check()
        page.get_by_role("button", name="Compare two").click()
        expect(page.get_by_role("row", name="step time")).to_contain_text("%")

        page.goto(served.origin)
        page.get_by_label("choose second").check()
        page.get_by_role("button", name="Delete").click()
        page.keyboard.press("Escape")
        assert second.path.exists()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", name="1 run")).to_be_visible()
    assert (first.path.exists(), second.path.exists()) == (True, False)
    assert complaints == []


def test_the_page_of_a_run_under_way_moves_and_becomes_the_report(
    folder: Path, context: BrowserContext
) -> None:
    run = made_running(folder, RUN)
    write_capture(run, "light")
    add_steps(run, 0, 20, samples=8, loss=0.5)
    page, complaints = watched(context)
    with serving(folder) as served:
        page.goto(served.viewer.address(f"/run/{RUN}"))
        expect(page.locator("#figures")).to_contain_text("step20")
        expect(page.locator("#chart-step polyline")).to_have_count(1)
        add_steps(run, 20, 5, samples=8, loss=0.25)
        expect(page.locator("#figures")).to_contain_text("step25")
        expect(page.locator("#figures")).to_contain_text("loss0.25")
        write_run_file(run, status="finished")
        expect(page.frame_locator("iframe").locator("h1")).to_be_visible()
    assert complaints == []


@pytest.mark.parametrize("text", [*NASTY, "<img src=x onerror=alert(1)>", "\"' onload=alert(1)"])
def test_hostile_names_are_text(folder: Path, context: BrowserContext, text: str) -> None:
    text = text.encode("utf-8", "replace").decode().replace("\0", "")
    run = made(folder, text.replace("/", "∕"), program=text)
    write_notes(run, [text.replace(",", "")[:40]], text)
    page, complaints = watched(context)
    with serving(folder) as served:
        page.goto(served.viewer.address())
        assert page.locator("#runs img, #runs script, #runs b").count() == 0
        page.locator("#runs td.name a").click()
        expect(page.frame_locator("iframe").locator("h1")).to_be_visible()
        assert page.locator("header.bar img, header.bar script").count() == 0
        page.goto(f"{served.origin}/compare")
        assert page.locator("main img, main script").count() == 0
    assert complaints == []


class Foreign:
    """A server of another page on loopback, with the requests that reach it."""

    def __init__(self) -> None:
        self.page = ""
        self.paths: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(outer.page.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    foreign = Foreign()
    thread = threading.Thread(target=foreign.server.serve_forever)
    thread.start()
    yield foreign
    foreign.server.shutdown()
    thread.join()
    foreign.server.server_close()


HOSTILE_REPORT = """<h1>report</h1><p id="seen"></p><script>
const seen = [];
const tryTo = (name, act) => { try { act(); seen.push(name); } catch { } };
tryTo("cookie", () => document.cookie);
tryTo("storage", () => localStorage.length);
if (parent !== window) tryTo("parent", () => parent.document.body.innerHTML);
tryTo("window", () => { if (!open("/")) throw 1; });
fetch("/").then(() => seen.push("fetch")).catch(() => {});
const image = new Image();
image.onload = () => seen.push("image");
image.src = "FOREIGN/image";
setTimeout(() => { document.getElementById("seen").textContent = `reached: ${seen}`; }, 500);
</script>"""


def test_a_hostile_report_stays_in_its_sandbox(
    folder: Path, context: BrowserContext, foreign: Foreign
) -> None:
    """Its script runs, because reports have one, but it reaches nothing."""
    run = made(folder, RUN)
    text = HOSTILE_REPORT.replace("FOREIGN", foreign.address)
    (run.path / "report.html").write_text(text)
    with serving(folder) as served:
        page, _ = watched(context)
        page.goto(served.viewer.address(f"/run/{RUN}"))
        expect(page.frame_locator("iframe").locator("#seen")).to_have_text("reached:")
        page.frames[1].evaluate(f"setTimeout(() => {{ location = '{foreign.address}/stolen'; }})")
        page.wait_for_timeout(1000)
        page.goto(f"{served.origin}/run/{RUN}/report")  # the report alone is in the sandbox too
        expect(page.locator("#seen")).to_have_text("reached:")
    assert foreign.paths == []


def attack(served: Served) -> str:
    """Return a page that tries to read and to change runs. Its own origin is another port of the
    same host, so that the browser sends our cookie with its requests."""
    return f"""<body><iframe id="frame" src="{served.origin}/"></iframe>
    <form id="form" method="post" action="{served.origin}/delete" enctype="text/plain" target="to">
    <input name='{{"names":["{RUN}"],"x":"' value='"}}'></form><iframe name="to" id="to"></iframe>
    <script src="{served.origin}/assets/viewer.js"></script>
    <script>
    const reached = [];
    const url = "{served.origin}";
    const options = [{{credentials: "include"}}, {{credentials: "include", mode: "no-cors"}}];
    const body = JSON.stringify({{names: ["{RUN}"]}});
    const json = {{"Content-Type": "application/json", "X-Ridgeline-Token": "x"}};
    for (const path of ["/", "/run/{RUN}", "/run/{RUN}/live"]) for (const option of options) {{
      fetch(url + path, option).then((r) => r.text()).then((t) => {{ if (t) reached.push(t); }})
        .catch(() => {{}});
    }}
    fetch(url + "/delete", {{method: "POST", body, headers: json, credentials: "include"}})
      .then(() => reached.push("delete")).catch(() => {{}});
    fetch(url + "/delete", {{method: "POST", body, mode: "no-cors", credentials: "include"}})
      .catch(() => {{}});
    document.getElementById("form").submit();
    if (typeof livePage !== "undefined") reached.push("script");
    </script>"""


def test_a_foreign_page_reads_and_changes_nothing(
    folder: Path, context: BrowserContext, foreign: Foreign
) -> None:
    run = made(folder, RUN)
    with serving(folder) as served:
        page, _ = watched(context)
        page.goto(served.viewer.address())  # the browser has our cookie now
        expect(page.locator("#runs")).to_contain_text(RUN)
        foreign.page = attack(served)
        page.goto(foreign.address)
        page.wait_for_timeout(1000)
        assert page.evaluate("reached") == []
        for frame in page.frames[1:]:
            assert RUN not in frame.content()
        page.goto(served.origin)  # typed by the person, so it is answered
        expect(page.locator("#runs")).to_contain_text(RUN)
    assert run.path.exists()


def test_a_link_of_a_foreign_page_shows_no_run(
    folder: Path, context: BrowserContext, foreign: Foreign
) -> None:
    made(folder, RUN)
    with serving(folder) as served:
        page, _ = watched(context)
        page.goto(served.viewer.address())
        foreign.page = f'<a href="{served.origin}/">runs</a>'
        page.goto(foreign.address)
        page.get_by_role("link").click()
        page.wait_for_url(f"{served.origin}/")
        assert page.locator("body").inner_text().strip() == REFUSAL.strip()


@pytest.fixture
def rebound(browser: Browser) -> Iterator[Browser]:
    """A browser for which evil.test is 127.0.0.1."""
    rules = "--host-resolver-rules=MAP evil.test 127.0.0.1"
    kind = browser.browser_type
    other = kind.launch(executable_path=chromium(), args=[*FLAGS, rules])
    yield other
    other.close()


def test_a_rebound_name_shows_no_run(folder: Path, rebound: Browser) -> None:
    """A page of evil.test whose name is made to point to 127.0.0.1 is of the same origin as what it
    asks for, so that the browser lets it read everything: only the Host header tells."""
    made(folder, RUN)
    with serving(folder) as served:
        page = rebound.new_page()
        evil = f"http://evil.test:{served.port}"
        for path in ("/", f"/?token={served.viewer.access.token}", f"/run/{RUN}/report"):
            page.goto(f"{evil}{path}")
            assert page.locator("body").inner_text().strip() == REFUSAL.strip()
            text = page.evaluate(f"fetch('/run/{RUN}').then((response) => response.text())")
            assert text == REFUSAL
