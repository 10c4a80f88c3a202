"""What a person sees of the diagnosis: after a run, in a trace's report, in the files."""

import json
import re
import time
from pathlib import Path

import pytest

from ridgeline.records.finding import Findings
from ridgeline.trace.reading import cache
from tests.integration.cold_and_warm import Warm, cold
from tests.integration.test_trace_command import starved

FIELDS = {
    "rule", "id", "claim", "share_pct", "gain_bound", "confidence", "file", "line", "module",
    "evidence", "change", "docs",
}  # fmt: skip
QUESTIONS = ["Is the device busy?", "Which kernels?", "Which intensity?", "Which gaps?",
             "Where is the peak?"]  # fmt: skip

SLOW = """
import time
import torch


def batch():
    time.sleep(0.008)
    return torch.ones(8, 16)


def main():
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()


main()
"""

NET = """
import torch


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = (one.view(2, 256, 4, 16).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4, -1)
        return (weights @ v).transpose(1, 2).reshape(2, 256, 64)
"""
IMPORTS = """
import torch
from net import Attention

model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(2, 256, 64)).square().mean().backward()
    optimizer.step()
"""


PAUSES = """
import random
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = [random.random() for _ in range(400_000)]
for i in range(120):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
    if i % 10 == 0:
        ranked = sorted(history)
    if i % 500 == 499:
        torch.save(model.state_dict(), "never.pt")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder a small program ran in, and what was said when it had ended."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "slow.py").write_text(SLOW)
    return folder, ran(folder, "-v", "slow.py")


def ran(folder: Path, *words: str) -> str:
    done = cold(["run", "-o", "result.json", *words], folder)
    assert done.code == 0, done.err
    end = time.monotonic() + 60  # the watcher speaks after the program is gone
    while not (folder / "result.json").exists() and time.monotonic() < end:
        time.sleep(0.1)
    return done.err


def test_a_run_leaves_its_findings_in_a_file_and_in_the_document(run: tuple[Path, str]) -> None:
    import msgspec

    folder, _ = run
    (kept,) = (folder / ".ridgeline" / "runs").glob("*/findings.json")
    found = msgspec.json.decode(kept.read_bytes(), type=Findings)
    document = json.loads((folder / "result.json").read_text())
    assert [f["id"] for f in document["findings"]] == [f.id for f in found.findings]
    assert all(f.keys() >= FIELDS for f in document["findings"])
    assert document["answers"][0]["question"] == "Is the device busy?"
    assert len(document["answers"]) == 5
    shares = [f["share_pct"] for f in document["findings"]]
    assert all(0 <= share <= 100 for share in shares)


@pytest.mark.reliability
def test_in_the_users_own_directory_a_file_that_the_script_imports_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is recorded with ~ for the home; most programs lie there, and no test did."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "work"
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "net.py").write_text(NET)
    (folder / "app" / "train.py").write_text(IMPORTS)
    ran(folder, "app/train.py")
    found = json.loads((folder / "result.json").read_text())["findings"]
    line = NET.splitlines().index(next(one for one in NET.splitlines() if "softmax" in one)) + 1
    places = [(one["file"], one["line"]) for one in found if one["rule"] == "written-attention"]
    assert places == [("app/net.py", line)]


@pytest.mark.reliability
def test_a_pause_is_reported_at_the_line_that_was_running(tmp_path: Path) -> None:
    (tmp_path / "pauses.py").write_text(PAUSES)
    ran(tmp_path, "pauses.py")
    found = json.loads((tmp_path / "result.json").read_text())["findings"]
    (pause,) = [one for one in found if one["rule"] == "idle-between-epochs"]
    line = next(n for n, text in enumerate(PAUSES.splitlines(), 1) if "sorted" in text)
    assert (pause["file"], pause["line"]) == ("pauses.py", line)
    assert "torch.save" not in json.dumps(found)


def test_the_directory_is_removed_with_its_findings(run: tuple[Path, str], warm: Warm) -> None:
    folder, _ = run
    shown = warm(["runs", "show", "latest", "-v"], folder)
    assert shown.code == 0, shown.err
    assert "Is the device busy?" in shown.out
    listed = json.loads(warm(["runs", "--json"], folder).out)["runs"][0]
    assert listed.keys() >= {"finding", "findings"}


def test_a_trace_is_answered_and_diagnosed(warm: Warm, tmp_path: Path) -> None:
    starved().write(tmp_path, "run.json")
    done = warm(["trace", "run.json", "--json"], tmp_path)
    assert done.code == 0, done.err
    found = done.document
    assert [a["question"] for a in found["answers"]] == QUESTIONS
    assert found["answers"][0]["text"].startswith("No: the GPU works")
    assert isinstance(found["findings"], list)
    assert all(f.keys() >= FIELDS for f in found["findings"])
    assert found["problems"] == []


def test_the_terminal_and_the_files_of_a_trace_say_the_same(warm: Warm, tmp_path: Path) -> None:
    starved().write(tmp_path, "run.json")
    terminal = warm(["trace", "run.json"], tmp_path)
    for ending in ("md", "html"):
        warm(["trace", "run.json", "-q", "-o", f"report.{ending}"], tmp_path)
    page, text = ((tmp_path / f"report.{end}").read_text() for end in ("html", "md"))
    for said in (terminal.out, text, page):
        assert "Is the device busy?" in said
        assert re.search(r"up to [\d.]+ ×|nothing above 3 %", said)


def test_several_ranks_are_diagnosed_too(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        starved(rank, 50.0 * rank).write(tmp_path / "ranks", f"rank{rank}.json.gz")
    done = warm(["trace", "ranks", "--json"], tmp_path)
    assert done.code == 0, done.err
    assert len(done.document["answers"]) == 5
    assert done.document["problems"] == []


def test_a_comparison_of_traces_is_as_it_was(warm: Warm, tmp_path: Path) -> None:
    starved().write(tmp_path, "a.json")
    starved().write(tmp_path, "b.json")
    done = warm(["trace", "a.json", "--compare", "b.json", "--json"], tmp_path)
    assert done.code == 0, done.err
    assert "findings" not in done.document


def test_findings_are_kept_with_the_cache_and_drawn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.diagnosis.trace_findings import diagnose_trace
    from ridgeline.trace.study import study

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 0)
    path = starved().write(tmp_path, "run.json")
    told: list[str] = []
    for _ in range(2):
        found, traces = study([path])
        causes = diagnose_trace(found, traces, [path], None, True, told.append)
        assert len(causes.answers) == 5
    assert told == ["looking for causes"]
    entry = cache.find(path)
    assert entry is not None
    (kept,) = entry.folder.glob("findings-*.json")
    kept.write_text("damaged")
    diagnose_trace(found, traces, [path], None, True, told.append)
    assert told == ["looking for causes"] * 2
    diagnose_trace(found, traces, [path], "1", True, told.append)  # another question
    assert len(told) == 3


def test_the_help_knows_explain(warm: Warm, tmp_path: Path) -> None:
    assert "explain" in warm(["--help"], tmp_path).out
    wrong = warm(["explain", "no-such-rule"], tmp_path)
    assert wrong.code == 2
    assert wrong.out == ""
    assert wrong.err.startswith("ridgeline: there is no rule no-such-rule")
