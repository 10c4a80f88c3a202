"""The server reads files of listed runs and no others, whatever a request or a run's directory
holds."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.run_page import run_page
from ridgeline.records.run import Step, Telemetry
from ridgeline.records.run_page import RunPage
from ridgeline.records.runs import NOTES_FILE, RunNotes
from ridgeline.viewer import pages
from tests.unit.viewer.served import Served, made, made_running, serving

SECRET = "outside-secret"
RUN = "1115-010203-train"
DOTS = (
    "..", "%2e%2e", "%2E%2E", ".%2e", "%252e%252e", "%25252e%25252e", "%c0%ae%c0%ae", "..%00",
    "%uff0e%uff0e", "\u2025", ". .", "...", "..;", "%2e%2e%20",
)  # fmt: skip
SLASHES = ("/", "%2f", "%2F", "%252f", "%5c", "\\", "%c0%af", "//", "/./", "%00/")
TARGETS = (
    "secret.html",
    "secret.html%00",
    "secret.html%00.html",
    "secret.html/report",
    "runs.bak/",
)


def climbing_paths(folder: Path) -> Iterator[str]:
    """Yield some thousand paths that would lead outside if a path were ever made of them."""
    for dots in DOTS:
        for slash in SLASHES:
            for target in TARGETS:
                climb = f"{dots}{slash}{dots}{slash}{target}"
                yield from (f"/run/{climb}", f"/run/{RUN}{slash}{climb}", f"/assets/{climb}")
                yield f"/run/{RUN}/report{slash}{climb}"
            yield f"/{dots}{slash}{dots}{slash}secret.html"
    absolute = str(folder / "secret.html")
    for start in ("", "/run", "/assets", f"/run/{RUN}"):
        for text in (absolute, absolute.replace("/", "%2f"), f"file://{absolute}", "/etc/passwd"):
            yield f"{start}/{text}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "secret.html").write_text(SECRET)
    (folder / "secret.json").write_bytes(msgspec.json.encode(RunNotes(text=SECRET)))
    made(folder / ".ridgeline" / "runs", RUN)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder / ".ridgeline" / "runs") as served:
        yield served


def test_no_path_leads_outside(served: Served, folder: Path) -> None:
    tried = {path.encode("utf-8").decode("latin-1") for path in climbing_paths(folder)}
    assert len(tried) > 1000
    for path in tried:
        response = served.get(path)
        assert response.status in (403, 404), path
        assert SECRET not in response.text
        assert "root:" not in response.text


@pytest.mark.parametrize("side", ["a", "b"])
def test_no_comparison_leads_outside(served: Served, folder: Path, side: str) -> None:
    for path in ("..", "../..", "../../secret.html", str(folder), "%2e%2e", "", "\0"):
        response = served.get(f"/compare?{side}={path}&a={RUN}")
        assert SECRET not in response.text


def test_a_run_that_is_a_link_does_not_exist(tmp_path: Path) -> None:
    elsewhere = made(tmp_path / "elsewhere", "private")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "linked").symlink_to(elsewhere.path)
    with serving(runs) as served:
        assert "linked" not in served.get("/").text
        for part in ("", "/report", "/live"):
            assert served.get(f"/run/linked{part}").status == 404
        answer = served.post("/delete", {"names": ["linked"]})
        assert answer.json["deleted"] == 0
    assert elsewhere.path.is_dir()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_report_that_is_a_link_is_not_served(tmp_path: Path, link: object) -> None:
    secret = tmp_path / "secret.html"
    secret.write_text(SECRET)
    run = made(tmp_path / "runs", RUN)
    link(secret, run.path / "report.html")  # type: ignore[operator]
    with serving(tmp_path / "runs") as served:
        response = served.get(f"/run/{RUN}/report")
    assert response.status == 200
    assert SECRET not in response.text
    assert "input-bound" in response.text  # the report is made from the summary instead


def test_a_stored_report_is_served_as_it_is_in_a_sandbox(tmp_path: Path) -> None:
    run = made(tmp_path, RUN)
    (run.path / "report.html").write_text("<title>stored</title>")
    with serving(tmp_path) as served:
        response = served.get(f"/run/{RUN}/report")
    assert response.text == "<title>stored</title>"
    assert "sandbox" in response.headers["content-security-policy"]


@pytest.mark.parametrize("name", ["summary.json", "run.json", NOTES_FILE])
def test_records_that_are_links_are_not_read(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(msgspec.json.encode({"text": SECRET, "command": SECRET, "status": SECRET}))
    run = made(tmp_path / "runs", RUN)
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(secret)
    with serving(tmp_path / "runs") as served:
        for route in ("/", f"/run/{RUN}", f"/run/{RUN}/report", f"/run/{RUN}/live"):
            assert SECRET not in served.get(route).text


def test_a_run_does_not_choose_which_files_are_shown_as_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text(SECRET)
    run = made(tmp_path / "runs", RUN)
    summary = run.summary()
    assert summary is not None
    named = replace(summary.findings.findings[0], file=str(secret), line=1)
    summary = replace(summary, findings=replace(summary.findings, findings=(named,)))
    run.write_whole("summary.json", msgspec.json.encode(summary))
    assert SECRET in str(run_page(run, summary).source)  # which a page of the run itself may show
    shown: list[RunPage] = []
    draw = pages.run_page_document
    monkeypatch.setattr(pages, "run_page_document", lambda page: draw(shown.append(page) or page))
    with serving(tmp_path / "runs") as served:
        text = served.get(f"/run/{RUN}/report").text
    assert SECRET not in text
    assert SECRET not in str(shown)


def test_growing_files_that_are_links_are_not_read(tmp_path: Path) -> None:
    run = made_running(tmp_path / "runs", RUN)
    step = Step(index=7, start_ns=1, dur_ns=1, loss=0.125)
    (tmp_path / "steps").write_bytes(msgspec.json.encode(step) + b"\n")
    (tmp_path / "telemetry").write_bytes(msgspec.json.encode(Telemetry(at_ns=9)) + b"\n")
    (run.path / "steps.jsonl").symlink_to(tmp_path / "steps")
    (run.path / "telemetry.jsonl").symlink_to(tmp_path / "telemetry")
    with serving(tmp_path / "runs") as served:
        news = served.get(f"/run/{RUN}/live?steps=0&telemetry=0").json
    assert (news["steps"], news["telemetry"]) == ([], [])


def test_a_pipe_in_place_of_a_file_does_not_hold_the_server_up(tmp_path: Path) -> None:
    run = made_running(tmp_path, RUN)
    for name in ("steps.jsonl", "report.html", NOTES_FILE, "capture-rank0.json"):
        os.mkfifo(run.path / name)
    with serving(tmp_path) as served:
        assert served.get("/").status == 200
        assert served.get(f"/run/{RUN}/live").status == 200


def test_deleting_a_run_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    run = made(tmp_path / ".ridgeline" / "runs", RUN)
    (run.path / "traces").symlink_to(outside)
    with serving(tmp_path / ".ridgeline" / "runs") as served:
        assert served.post("/delete", {"names": [RUN]}).json == {"deleted": 1, "problem": ""}
    assert not run.path.exists()
    assert (outside / "kept").exists()
