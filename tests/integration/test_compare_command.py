"""`ridgeline compare` as a person types it."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.cold_and_warm import COMMAND, Outcome, Warm, interruptible

HERE = Path(__file__).parent
QUICK = ("--budget", "30s")
"""For the whole call, of which importing torch on a busy machine may take half; a clear verdict
ends it within seconds."""
USAGE, GATE, NOTHING_MEASURED = 2, 3, 4


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "w.py").write_text((HERE / "user_workloads.py").read_text())
    return folder


def compare(warm: Warm, folder: Path, *arguments: str) -> Outcome:
    return warm(("compare", *arguments), folder)


def test_the_json_has_what_a_job_needs(warm: Warm, user: Path) -> None:
    done = compare(warm, user, "w.py:slow", "w.py:fast", *QUICK, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["verdict"] == "FASTER"
    assert 3 < found["ci_low"] < found["ratio"] < found["ci_high"] < 30
    assert found["control"]["ci_low"] <= found["control"]["ratio"] <= found["control"]["ci_high"]
    assert found["results"]["status"] == "bit-identical"
    assert found["results"]["strength"] == "strong"
    counts = {name: arm["count"] for name, arm in found["samples"].items()}
    assert set(counts) == {"baseline", "control", "w.py:fast"}
    assert set(counts.values()) == {found["rounds"]}


def test_a_slower_candidate_fails_the_gate(warm: Warm, user: Path) -> None:
    gate = ("--fail-if", "slower", "-o", "comment.md")
    done = compare(warm, user, "w.py:fast", "w.py:slow", *QUICK, *gate)
    assert done.code == GATE
    assert done.out == ""
    assert "gate failed: w.py:slow is SLOWER" in done.err
    assert "SLOWER" in (user / "comment.md").read_text()


def test_a_function_that_returns_no_callable_is_timed_itself(warm: Warm, user: Path) -> None:
    done = compare(warm, user, "w.py:slow", "w.py:plain", *QUICK, "--json")
    assert json.loads(done.out)["verdict"] == "FASTER"


def test_a_wrong_answer_is_invalid_however_fast(warm: Warm, user: Path) -> None:
    done = compare(warm, user, "w.py:slow", "w.py:wrong", *QUICK, "--json")
    assert done.code == NOTHING_MEASURED
    found = json.loads(done.out)
    assert found["verdict"] == "INVALID"
    assert found["results"]["status"] == "different"


def test_several_candidates_have_an_entry_each_and_a_broken_one_does_not_stop_them(
    warm: Warm, user: Path
) -> None:
    targets = ("w.py:slow", "w.py:raises", "w.py:fast", "w.py:unable")
    done = compare(warm, user, *targets, *QUICK, "--json")
    assert done.code == NOTHING_MEASURED
    found = json.loads(done.out)
    assert [entry["verdict"] for entry in found["candidates"]] == ["FASTER"]
    broken = {row["name"]: row for row in found["broken"]}
    assert broken["w.py:raises"]["status"] == "BROKEN"
    assert "boom [bold]" in broken["w.py:raises"]["reason"]
    assert broken["w.py:unable"]["status"] == "SKIP"


CASES = {
    "raises": (["w.py:slow", "w.py:raises"], NOTHING_MEASURED, "ValueError at w.py:"),
    "raises when built": (["w.py:raises_when_built", "w.py:fast"], NOTHING_MEASURED, "missing"),
    "hangs": (["w.py:fast", "w.py:hangs", "--timeout", "2s"], NOTHING_MEASURED, "not come back"),
    "exits": (["w.py:fast", "w.py:leaves"], NOTHING_MEASURED, "I am a script"),
    "ends": (["w.py:fast", "w.py:ends_its_process"], NOTHING_MEASURED, "exit code 7"),
    "skips": (["w.py:fast", "w.py:unable"], NOTHING_MEASURED, "needs a GPU with fp8"),
    "arguments": (["w.py:fast", "w.py:needs"], USAGE, "takes arguments"),
    "no function": (["w.py:fast", "w.py:number"], NOTHING_MEASURED, "no function"),
    "no such name": (["w.py:fast", "w.py:fasst"], USAGE, "did you mean fast"),
    "no such file": (["w.py:fast", "nowhere.py:fast"], USAGE, "no file nowhere.py"),
    "no such script": (["w.py", "nowhere.py"], USAGE, "no file nowhere.py"),
    "one target": (["w.py:fast"], USAGE, "not a comparison"),
    "no target": ([], USAGE, "missing argument"),
    "mixed": (["w.py:fast", "w.py"], USAGE, "cannot be compared"),
    "threshold": (["w.py:fast", "w.py:slow", "--threshold", "many"], USAGE, "not a share"),
    "budget": (["w.py:fast", "w.py:slow", "--budget", "soon"], USAGE, "not a time"),
    "format": (["w.py:fast", "w.py:slow", "-o", "x.docx"], USAGE, ".html"),
    "empty folder": (["empty"], USAGE, "baseline_X.py"),
    "folder and more": (["empty", "w.py:fast"], USAGE, "alone"),
    "arguments for functions": (["w.py:fast", "w.py:slow", "--", "--x"], USAGE, "scripts"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gets_a_sentence_and_a_code(warm: Warm, user: Path, name: str) -> None:
    (user / "empty").mkdir(exist_ok=True)
    arguments, code, words = CASES[name]
    done = compare(warm, user, *arguments)
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.code == code
    assert done.out == ""


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("w.py:nothing", "INVALID", ""),
        ("w.py:draws", "INVALID", ""),
        ("w.py:starts_threads", "", "threads left behind"),
        ("w.py:prints", "", ""),
    ],
)
def test_odd_workloads_are_named_and_nothing_of_theirs_reaches_stdout(
    warm: Warm, user: Path, target: str, status: str, words: str
) -> None:
    done = compare(warm, user, "w.py:slow", target, *QUICK, "--json")
    found = json.loads(done.out)  # not a line of the user's in it
    if status:
        assert found["verdict"] == status
    assert words in done.out


@pytest.mark.reliability  # `make programs`, and CI
def test_variants_that_change_the_process_get_their_own(warm: Warm, user: Path) -> None:
    done = compare(warm, user, "w.py:slow", "w.py:one_thread", "--budget", "60s", "--json")
    found = json.loads(done.out)
    assert found["mode"] == "isolated processes"
    assert any("threads" in note for note in found["notes"])
    assert found["verdict"] == "FASTER"
    assert found["candidates"][0]["processes"] == 3


TRAIN = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    loss = model(torch.randn(4, 8)).square().mean(){change}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep({pause})
print("done")
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "base.py").write_text(TRAIN.format(pause=0.1, change=""))
    (folder / "head.py").write_text(TRAIN.format(pause=0.01, change=""))
    (folder / "other.py").write_text(TRAIN.format(pause=0.01, change=" * 1.1"))
    (folder / "plain.py").write_text("import time\ntime.sleep(0.2)\n")
    (folder / "fails.py").write_text("raise SystemExit('no data here')\n")
    return folder


@pytest.mark.reliability  # `make programs`, and CI
def test_scripts_are_timed_by_their_steps_and_their_losses_compared(
    warm: Warm, scripts: Path
) -> None:
    done = compare(warm, scripts, "base.py", "head.py", "--json", "--budget", "60s", "--", "12")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["mode"], found["unit"]) == ("scripts", "step")
    assert found["verdict"] in ("FASTER", "UNDECIDED")  # few rounds on a busy machine
    assert found["ratio"] > 3
    assert found["results"]["status"] == "bit-identical"


@pytest.mark.reliability  # `make programs`, and CI
def test_a_script_with_other_losses_is_invalid(warm: Warm, scripts: Path) -> None:
    done = compare(warm, scripts, "base.py", "other.py", "--json", "--budget", "60s")
    assert json.loads(done.out)["verdict"] == "INVALID"


def test_scripts_without_steps_are_timed_whole_and_say_so(warm: Warm, scripts: Path) -> None:
    done = compare(warm, scripts, "plain.py", "plain.py", "--json", "--budget", "10s")
    found = json.loads(done.out)
    assert found["unit"] == "run"
    assert found["results"]["status"] == "not compared"
    assert any("no optimizer steps" in note for note in found["notes"])


def test_a_script_that_fails_is_named_with_its_own_words(warm: Warm, scripts: Path) -> None:
    done = compare(warm, scripts, "plain.py", "fails.py")
    assert done.code == NOTHING_MEASURED
    assert "fails.py ended with exit code 1" in done.err
    assert "no data here" in done.err


PAIR = "import sys; sys.path.insert(0, {where!r})\nfrom w import {name} as workload\n"


def test_a_folder_is_one_table_and_a_broken_pair_does_not_stop_it(
    warm: Warm, user: Path, tmp_path: Path
) -> None:
    for pair, names in {
        "good": ("slow", "fast"), "bad": ("slow", "raises"), "skips": ("slow", "unable")
    }.items():  # fmt: skip
        for side, name in zip(("baseline", "optimized"), names, strict=True):
            text = PAIR.format(where=str(user), name=name)
            (tmp_path / f"{side}_{pair}.py").write_text(text)
    done = compare(warm, user, str(tmp_path), *QUICK, "-o", str(tmp_path / "out.json"))
    assert done.code == NOTHING_MEASURED
    found = json.loads((tmp_path / "out.json").read_text())
    rows = {row["name"]: row for row in found["pairs"]}
    assert rows["good"]["verdict"] == "FASTER"
    assert rows["bad"]["status"] == "BROKEN"
    assert rows["skips"]["status"] == "SKIP"
    assert "boom [bold]" in str(rows["bad"])
    assert "needs a GPU" in str(rows["skips"])
    assert done.out == ""


def test_a_page_is_written_whole(warm: Warm, user: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    compare(warm, user, "w.py:slow", "w.py:fast", *QUICK, "-o", str(page))
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<svg" in text
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "http" not in outside.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_ctrl_c_in_the_rounds_keeps_what_was_measured(user: Path) -> None:
    # The file appears after 3 s of calls.
    process = subprocess.Popen(
        [*COMMAND, "compare", "w.py:counted", "w.py:counted", "--budget", "60s", "--json",
         "--threshold", "0.01%"],
        cwd=user, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=interruptible,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not (user / "counted").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["stopped"] == "interrupted"
    assert found["rounds"] > 0


def test_ctrl_c_between_sets_of_processes_keeps_the_sets_before(user: Path) -> None:
    # `late` takes a minute to build from the second set on: time enough to be interrupted in.
    (user / "sets.py").write_text(
        "import pathlib, time\n"
        "def base():\n    return lambda: time.sleep(0.002)\n"
        "def late():\n"
        "    seen = len(list(pathlib.Path('.').glob('built.*')))\n"
        "    pathlib.Path(f'built.{seen}').touch()\n"
        "    if seen:\n        time.sleep(60)\n"
        "    return lambda: time.sleep(0.002)\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "compare", "sets.py:base", "sets.py:late", "--isolate", "--budget", "60s",
         "--json", "--no-check"],
        cwd=user, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=interruptible,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not (user / "built.1").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["stopped"] == "interrupted"
    assert found["rounds"] > 0
