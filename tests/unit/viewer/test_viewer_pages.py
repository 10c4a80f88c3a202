"""What the pages show: the list with its search, order and plot, two runs side by side, and names
from outside as text."""

import os
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.errors import UsageError
from ridgeline.records.finding import Findings
from ridgeline.records.run import RunFile, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.runs import MAX_TAGS, NOTES_FILE, notes_of, write_notes
from ridgeline.viewer import pages
from ridgeline.viewer.library import (
    FIGURE_BY_ID,
    FIGURES,
    SORT_KEYS,
    Library,
    entry_of,
    id_of,
    matching,
    ordered,
    program_of,
)
from tests.unit.report import made_up_findings, made_up_run
from tests.unit.report.made_up_trace import NASTY
from tests.unit.viewer.served import made, made_running, serving, write_run_file

RUN = "1115-010203-train"
HOSTILE = (
    *NASTY,
    "\"onmouseover=\"alert(1)",
    "'><img src=x onerror=alert(1)>",
    "</textarea></title></script><script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "javascript:alert(1)",
    "&lt;b&gt;",
)  # fmt: skip


def listed(text: str) -> list[str]:
    """Return the ids of the runs in a page's table, from top to bottom."""
    return re.findall(r'<tr data-name="/run/([^"]*)"', text)


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    with serving(tmp_path / "nothing") as served:
        page = served.get("/")
    assert page.status == 200
    assert "ridgeline run train.py" in page.text
    assert "0 runs" in page.text


def test_a_run_is_listed_with_its_main_facts(tmp_path: Path) -> None:
    write_notes(made(tmp_path, RUN, program="src/train.py"), ["bf16", "big batch"], "worth a note")
    with serving(tmp_path) as served:
        text = served.get("/").text
    for shown in (
        RUN, "1 run<", "train.py", "input-bound", "loader-starves", "152 ms", "7.9 GiB", "finished",
        "bf16, big batch", "worth a note",
    ):  # fmt: skip
        assert shown in text
    assert 'id="history"' not in text  # one run is no history


def test_every_key_sorts_with_unknown_values_last_in_both_directions(tmp_path: Path) -> None:
    write_notes(made(tmp_path, "a", program="z.py", step_ms=9.0), ["one"], "")
    made(tmp_path, "b", program="y.py", step_ms=300.0, began_at="2026-11-16T01:02:03+00:00")
    made(tmp_path, "c", program="x.py", step_ms=None, began_at="2026-11-17T01:02:03+00:00")
    entries = Library(tmp_path).entries()

    def names(key: str, *, descending: bool) -> str:
        return "".join(entry.name for entry in ordered(entries, key, descending=descending))

    assert names("step", descending=False) == "abc"
    assert names("step", descending=True) == "bac"
    assert names("began", descending=True) == "cba"
    assert names("program", descending=False) == "cba"
    assert names("tags", descending=True)[0] == "a"
    assert names("memory", descending=False)[-1] == "c"
    for key in SORT_KEYS:
        assert sorted(names(key, descending=True)) == ["a", "b", "c"]


def test_the_address_searches_and_sorts(tmp_path: Path) -> None:
    made(tmp_path, "first", step_ms=9.0)
    made(tmp_path, "second", program="other.py", step_ms=3.0)
    with serving(tmp_path) as served:
        assert listed(served.get("/?sort=step&order=up").text) == ["second", "first"]
        assert listed(served.get("/?sort=step&order=down").text) == ["first", "second"]
        assert listed(served.get("/?q=OTHER+input-bound").text) == ["second"]
        assert listed(served.get("/?q=nothing-like-it").text) == []
        assert listed(served.get("/?sort=__class__&order=x").text) != []


def test_a_search_looks_at_tags_and_notes(tmp_path: Path) -> None:
    write_notes(made(tmp_path, "a"), ["BF16"], "")
    write_notes(made(tmp_path, "b"), [], "The new Loader")
    entries = Library(tmp_path).entries()
    assert [entry.name for entry in matching(entries, "bf16")] == ["a"]
    assert [entry.name for entry in matching(entries, "loader new")] == ["b"]


def test_the_history_has_a_point_for_each_run_that_has_the_number(tmp_path: Path) -> None:
    for i, step_ms in enumerate((30.0, 20.0, 10.0, None)):
        made(tmp_path, f"r{i}", step_ms=step_ms, began_at=f"2026-11-{20 - i}T00:00:00+00:00")
    entries = Library(tmp_path).entries()
    picture = str(pages.history(entries, FIGURE_BY_ID["step_ms"]))
    assert re.findall(r'href="/run/(r\d)"', picture) == ["r2", "r1", "r0"]  # the oldest first
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', picture)]
    assert heights == sorted(heights, reverse=True)  # the slowest is highest
    assert not pages.history(entries[:2], FIGURE_BY_ID["tokens_s"])  # no run has it


def test_each_figure_is_read_from_a_summary_that_has_everything() -> None:
    known = {figure.id for figure in FIGURES if figure.read(made_up_run.summary()) is not None}
    assert set(FIGURE_BY_ID) - known == {"tokens_s", "transfer_ms"}
    assert all(figure.text(1.5) for figure in FIGURES)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (3.0, 3.0), (-1.0, 5e9), (0.0, 0.0), (1e-9, 2e-9), (99.0, 101.0)]
)
def test_ticks_are_few_and_enclose_the_values(low: float, high: float) -> None:
    ticks = pages.even_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert ticks == sorted(set(ticks))


def test_two_runs_are_compared_by_numbers_phases_findings_and_settings(tmp_path: Path) -> None:
    a, b = made(tmp_path, "a", step_ms=100.0), made(tmp_path, "b", step_ms=80.0)
    summary = b.summary()
    assert summary is not None
    phases = tuple(replace(p, ms=p.ms / 2) for p in summary.step.phases if p.phase != "other")
    fewer = Findings(findings=summary.findings.findings[1:])
    summary = replace(
        summary, step=replace(summary.step, phases=phases), findings=fewer, device="NVIDIA B200"
    )
    sides = [
        pages.Side(run.name, run.run(), of)
        for run, of in ((a, a.summary()), (b, summary))
        if of is not None
    ]
    numbers = {row[0]: row[1:] for row in pages.number_rows(*sides)}
    assert numbers["step time"] == ("100 ms", "80 ms", "-20 %")
    assert "tokens/s" not in numbers  # neither has it
    changes = {row[0]: row[3] for row in pages.phase_rows(*sides)}
    assert changes["input"] == "-46 ms"
    assert changes["other"] == "-7.1 ms"  # one of the runs does not have this phase
    findings = {rule: (one is not None, two is not None) for rule, one, two
                in pages.finding_rows(*sides)}  # fmt: skip
    assert findings["loader-starves"] == (True, False)
    assert (True, True) in findings.values()
    assert pages.setting_rows(*sides) == [("device", "NVIDIA H200", "NVIDIA B200")]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [(100.0, 112.0, "+12 %"), (100.0, 100.0, "0 %"), (-2.0, -1.0, "+50 %"), (0.0, 1.0, ""),
     (None, 1.0, "")],
)  # fmt: skip
def test_a_difference_is_relative_to_the_first_run(
    first: float | None, second: float | None, text: str
) -> None:
    assert pages.relative_difference(first, second) == text


def test_a_comparison_of_runs_that_left_nothing_is_a_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made(tmp_path, name, step_ms=None)
    with serving(tmp_path) as served:
        assert served.get("/compare?a=a&b=b").status == 200
        assert served.get("/compare?a=a").status == 200


def test_a_run_that_was_never_concluded_still_has_a_report(tmp_path: Path) -> None:
    made(tmp_path, RUN, step_ms=None)
    with serving(tmp_path) as served:
        assert served.get(f"/run/{RUN}").status == 200
        report = served.get(f"/run/{RUN}/report")
    assert report.status == 200
    assert "<!doctype html>" in report.text


def test_a_run_of_a_newer_version_is_refused_by_a_sentence(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    run.write_whole("summary.json", b'{"schema": 999, "name": "x"}')
    with serving(tmp_path) as served:
        assert "newer" in served.get("/").text
        report = served.get(f"/run/{RUN}/report")
    assert report.status == 409
    assert "upgrade ridgeline" in report.text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text_everywhere(tmp_path: Path, text: str) -> None:
    name = text.replace("/", "∕").replace("\0", "")  # a name of a directory has no slash
    run = made(tmp_path, os.fsencode(name.encode("utf-8", "replace")).decode(), program=safe(text))
    run.write_whole(NOTES_FILE, msgspec.json.encode({"tags": [safe(text)], "text": safe(text)}))
    hostile = made_up_findings.findings().findings[0]
    hostile = replace(hostile, claim=safe(text), rule=safe(text))
    summary = replace(
        made_up_run.summary(), command=safe(text), findings=Findings(findings=(hostile,))
    )
    run.write_whole("summary.json", msgspec.json.encode(summary))
    run_id = id_of(run.name)
    assert re.fullmatch(r"[\w.~%-]+", run_id)
    with serving(tmp_path) as served:
        for route in ("/", f"/run/{run_id}", f"/compare?a={run_id.replace('%', '%25')}&b={run_id}"):
            page = served.get(route)
            assert page.status == 200
            assert not re.search(
                r"<(script|img|b)(?! src=\"/assets/viewer.js\" defer)[ >]", page.text
            )
            assert not set("\x1b\x9b\u202e\x07\x00\u200b") & set(page.text)
            assert " on" not in "".join(re.findall(r"<[^>]*>", re.sub(r'"[^"]*"', "", page.text)))
        assert len(listed(served.get("/").text)) == 1


def safe(text: str) -> str:
    """Return the text without what JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def test_a_name_that_is_no_text_is_listed_opened_and_deleted(tmp_path: Path) -> None:
    folder = tmp_path / ".ridgeline" / "runs"
    run = made(folder, os.fsdecode(b"1115-\xff\xfe-train"))
    with serving(folder) as served:
        assert listed(served.get("/").text) == ["1115-%FF%FE-train"]
        assert served.get("/run/1115-%FF%FE-train").status == 200
        answer = served.post("/delete", {"names": ["1115-%FF%FE-train"]})
    assert answer.json["deleted"] == 1
    assert not run.path.exists()


def test_notes_are_written_whole_beside_the_run_and_shown_again(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    with serving(tmp_path) as served:
        sent = {"tags": " bf16 ,, bf16,two  words", "text": "first \nsecond\r\n"}
        answer = served.post(f"/run/{RUN}/notes", sent)
        assert answer.json == {"tags": "bf16, two words", "text": "first\nsecond"}
        text = served.get("/").text
    assert notes_of(run).tags == ("bf16", "two words")
    assert "first\nsecond</textarea>" in text
    assert not [name for name in os.listdir(run.path) if name.startswith(".")]


@pytest.mark.parametrize(
    "data",
    [
        {"tags": ",".join(map(str, range(MAX_TAGS + 1))), "text": ""},
        {"tags": "x" * 41, "text": ""},
        {"tags": "", "text": "x" * 4001},
        {"tags": 1, "text": ""},
        {"tags": "", "text": "\ud800"},
        {},
        [],
        b"{",
        b"[" * 50_000,
        b"x" * 70_000,
    ],
)
def test_notes_that_cannot_be_kept_are_refused_by_a_sentence(tmp_path: Path, data: object) -> None:
    run = made(tmp_path, RUN)
    write_notes(run, ["kept"], "kept")
    with serving(tmp_path) as served:
        answer = served.post(f"/run/{RUN}/notes", data)
    assert answer.status in (400, 409)
    assert answer.json["problem"]
    assert notes_of(run).text == "kept"


def test_damaged_notes_are_named_and_can_be_written_again(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    (run.path / NOTES_FILE).write_text("{")
    with serving(tmp_path) as served:
        assert f"{NOTES_FILE} is damaged" in served.get("/").text
        assert served.post(f"/run/{RUN}/notes", {"tags": "", "text": "new"}).status == 200
    assert notes_of(run).text == "new"


def test_notes_of_a_newer_version_are_not_overwritten(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    (run.path / NOTES_FILE).write_text('{"schema": 99, "new": "field"}')
    with serving(tmp_path) as served:
        assert served.post(f"/run/{RUN}/notes", {"tags": "", "text": "x"}).status == 409
    assert "field" in (run.path / NOTES_FILE).read_text()


def test_notes_need_a_body_of_json(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    with serving(tmp_path) as served:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert served.post(f"/run/{RUN}/notes", {"tags": "", "text": ""}, **form).status == 400
        bare = served.request("POST", f"/run/{RUN}/notes", served.writing_headers())
        assert bare.status == 400


def test_deleting_leaves_running_runs_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / ".ridgeline" / "runs"
    over, running = made(folder, "over"), made_running(folder, "running")
    with serving(folder) as served:
        answer = served.post("/delete", {"names": ["over", "running", "unknown"]}).json
    assert answer["deleted"] == 1
    assert "running was not deleted" in answer["problem"]
    assert (over.path.exists(), running.path.exists()) == (False, True)


def test_the_list_follows_the_folder(tmp_path: Path) -> None:
    made(tmp_path, "a")
    with serving(tmp_path) as served:
        assert listed(served.get("/").text) == ["a"]
        run = made(tmp_path, "b")
        assert set(listed(served.get("/").text)) == {"a", "b"}
        write_run_file(run, status="raised")
        assert "raised" in served.get("/").text


def test_a_run_that_is_over_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "a")
    running = made_running(tmp_path, "b")
    library = Library(tmp_path)
    read: list[str] = []

    def counted(run: RunDirectory) -> object:
        read.append(run.name)
        return entry_of(run)

    monkeypatch.setattr("ridgeline.viewer.library.entry_of", counted)
    for _ in range(3):
        library.entries()
    assert sorted(read) == ["a", "b", "b", "b"]
    write_run_file(running)
    library.entries()
    library.entries()
    assert read.count("b") == 4


@pytest.mark.parametrize(
    ("target", "program"),
    [
        (Target(kind="script", name="src/train.py"), "train.py"),
        (Target(kind="module", name="pkg.train"), "-m pkg.train"),
        (Target(kind="code", name="import x"), "-c …"),
        (Target(kind="script", name="-"), "-"),
    ],
)
def test_a_program_is_named_in_a_few_words(target: Target, program: str) -> None:
    assert program_of(target) == program
    assert RunFile(name="x", target=target).target == target


def test_too_many_runs_are_counted_below_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_ROWS", 2)
    for name in "abc":
        made(tmp_path, name)
    with serving(tmp_path) as served:
        text = served.get("/").text
    assert len(listed(text)) == 2
    assert "and 1 more" in text


def test_tags_are_kept_in_their_order_and_checked(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    assert write_notes(run, ["b", "a", "b"], "x").tags == ("b", "a")
    with pytest.raises(UsageError):
        write_notes(run, ["x" * 41], "")
