"""Programs that go wrong, or that profile and patch themselves, under `ridgeline run`.

Each is run as a person would. The program's own end, exit code and words are its own; the run that
is left says how it ended. All are started two at a time before the first test looks at one.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ridgeline

pytestmark = pytest.mark.reliability
PACKAGE = str(Path(ridgeline.__file__).parent)
COMMAND = str(Path(sys.executable).with_name("ridgeline"))
TRAIN = """\
import os, signal, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def step():
    optimizer.zero_grad(); loss = model(torch.ones(4, 8)).square().mean()
    loss.backward(); optimizer.step()
    return loss
"""
PROGRAMS = {
    "syntax error": "print('never')\ndef f(:\n",
    "exception at step 0": TRAIN + "model(torch.ones(4, 9))\n",
    "os._exit": TRAIN + "for i in range(30): step()\nprint('out', flush=True)\nos._exit(5)\n",
    "sys.exit(7)": TRAIN + "for i in range(30): step()\nprint('bye')\nsys.exit(7)\n",
    "kill -9": TRAIN + "for i in range(30): step()\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "disk full": TRAIN + "for i in range(400): step()\nprint('trained')\n",
    "own profiler": TRAIN + """
with torch.profiler.profile() as p:
    for i in range(40): step()
print({e.key: e.count for e in p.key_averages()}["aten::square"])
""",
    "own cProfile": TRAIN + """
import cProfile, pstats
p = cProfile.Profile(); p.enable()
for i in range(40): step()
p.disable()
print({(k[0], k[2]): v[0] for k, v in pstats.Stats(p).stats.items()}[__file__, "step"] >= 40,
      sys.getprofile())
""",
    "patched DataLoader": TRAIN + """
from torch.utils import data
class Mine(data.DataLoader):
    def __iter__(self): print("mine"); return super().__iter__()
data.DataLoader = Mine
for x, in data.DataLoader(data.TensorDataset(torch.ones(40, 8)), 2): step()
print(data.DataLoader is Mine)
""",
    "thousand steps": TRAIN + "for i in range(1000): loss = step()\nprint(loss.item().hex())\n",
    "full at the end": TRAIN + """
import resource
for i in range(4): step()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
print("trained")
raise SystemExit(3)
""",
    "two steps": TRAIN + "for i in range(2): loss = step()\nprint(loss.item().hex())\n",
}  # fmt: skip
OPTIONS = {"thousand steps": ("--steps", "20"), "disk full": ("--full",)}
SMALLEST = 8 * 1024
"""Bytes a file may have where the disk is full: less than the steps of 400, or a trace, need."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    folder: Path

    def file(self, name: str) -> Any:
        (found,) = self.folder.glob(f".ridgeline/runs/*/{name}")
        return json.loads(found.read_bytes())

    @property
    def words(self) -> str:
        """Ours on stderr."""
        return self.err[self.err.find(" ridgeline ") :]


def run(folder: Path, *arguments: str, full: bool = False, **environment: str) -> Ran:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALLEST, resource.RLIM_INFINITY))

    done = subprocess.run(
        [COMMAND, "run", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limited if full else None,
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Ran]"]]:
    with ThreadPoolExecutor(2) as pool:
        started = {}
        for name, source in PROGRAMS.items():
            folder = tmp_path_factory.mktemp("program")
            (folder / "train.py").write_text(source)
            more = OPTIONS.get(name, ())
            started[name] = pool.submit(run, folder, *more, "train.py", full=name == "disk full")
        yield started


def test_a_missing_script_gets_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "nowhere.py", "--epochs", "1")
    assert done.code == 2
    assert done.out == ""
    looked = f"  looked for it in {tmp_path}\n"
    assert done.err == f"ridgeline: there is no file nowhere.py\n{looked}"
    assert list(tmp_path.iterdir()) == []


def test_a_syntax_error_reads_as_without_us(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["syntax error"].result()
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith('  File "')
    assert "SyntaxError" in done.err
    assert "Traceback" not in done.err
    assert done.file("run.json")["status"] == "raised"


def test_an_exception_at_step_0_shows_the_users_frames_only(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["exception at step 0"].result()
    assert done.code == 1
    trace = done.err[: done.err.find(" ridgeline ")]
    assert "mat1 and mat2 shapes cannot be multiplied" in trace
    assert PACKAGE not in trace
    kept = done.file("run.json")
    assert kept["status"] == "raised"
    assert kept["why"].startswith("RuntimeError: mat1 and mat2")
    assert done.file("capture-rank0.json")["steps"] == 0


@pytest.mark.parametrize(
    ("name", "code", "out", "status"),
    [
        ("os._exit", 5, "out\n", "killed"),
        ("sys.exit(7)", 7, "bye\n", "finished"),
        ("kill -9", -signal.SIGKILL, "", "killed"),
    ],
)
def test_its_end_is_its_own_and_the_run_is_kept(
    ran: dict[str, "Future[Ran]"], name: str, code: int, out: str, status: str
) -> None:
    done = ran[name].result()
    assert (done.code, done.out) == (code, out)
    assert "Traceback" not in done.err
    assert " ridgeline " in done.err
    kept = done.file("run.json")
    assert (kept["status"], kept["exit_code"]) == (status, code)
    assert done.file("capture-rank0.json")["stepping"] == "optimizer"
    listed = subprocess.run(
        [COMMAND, "runs", "--json"], cwd=done.folder, capture_output=True, text=True, check=True
    )
    assert [run["status"] for run in json.loads(listed.stdout)["runs"]] == [status]


def test_a_full_disk_costs_the_run_and_not_the_program(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["disk full"].result()
    assert (done.code, done.out) == (0, "trained\n")
    assert "Traceback" not in done.err
    assert "could not be written" in done.err
    for path in done.folder.glob(".ridgeline/runs/*/*.json"):
        json.loads(path.read_bytes())  # whole, or not there


def test_a_disk_that_is_full_at_the_end_does_not_hold_the_program(
    ran: dict[str, "Future[Ran]"],
) -> None:
    done = ran["full at the end"].result()  # it once waited longer than `run` lets it
    assert (done.code, done.out) == (3, "trained\n")
    assert "Traceback" not in done.err
    assert done.file("run.json")["exit_code"] == 3
    assert not list(done.folder.glob(".ridgeline/runs/*/.*.json.*")), "no half-written file"


def test_where_the_folder_cannot_be_written_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import sys\nprint('ran')\nsys.exit(4)\n")
    (tmp_path / ".ridgeline").write_text("a file in the way")
    done = run(tmp_path, "x.py", RIDGELINE_CACHE=str(tmp_path / "cache"))
    assert (done.code, done.out) == (4, "ran\n")
    assert "Traceback" not in done.err
    assert (tmp_path / ".ridgeline").read_text() == "a file in the way"
    assert list((tmp_path / "cache").rglob("run.json")), "kept in the cache folder, and said"


def test_on_a_read_only_disk_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('ran')\n")
    script = (
        'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && '
        'cd "$1" && RIDGELINE_CACHE="$1/cache" exec "$2" run x.py'
    )
    # setup fails where users may not have a mount namespace of their own
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "x", "/mnt"]).returncode:
        pytest.skip("no mount namespace can be had here")
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script, "bash", str(tmp_path), COMMAND],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.startswith("ridgeline: the program runs, but is not recorded: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_program_with_its_own_profiler_keeps_it(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["own profiler"].result()
    assert (done.code, done.out) == (0, "40\n")
    capture = done.file("capture-rank0.json")
    assert capture["problems"] == []
    assert capture["trace_file"] == ""
    assert any("the program profiles itself" in one for one in capture["missing"])


def test_a_program_with_cprofile_keeps_it(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["own cProfile"].result()
    assert (done.code, done.out) == (0, "True None\n")
    assert done.file("capture-rank0.json")["problems"] == []


def test_a_patched_dataloader_stays_patched(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["patched DataLoader"].result()
    assert (done.code, done.out) == (0, "mine\nTrue\n")
    (loader,) = done.file("capture-rank0.json")["loaders"]
    assert loader["batches"] == 20


def test_a_thousand_steps_get_every_window(ran: dict[str, "Future[Ran]"]) -> None:
    done = ran["thousand steps"].result()
    assert done.code == 0
    kinds = [window["kind"] for window in done.file("capture-rank0.json")["windows"]]
    assert kinds[:3] == ["settle", "light", "traced"]
    summary = done.file("summary.json")
    assert summary["step"]["median_ms"] > 0
    assert summary["verdict"]["bound"] != "unknown"


def test_two_steps_get_what_can_be_had_and_say_what_is_missing(
    ran: dict[str, "Future[Ran]"],
) -> None:
    done = ran["two steps"].result()
    assert done.code == 0
    summary = done.file("summary.json")
    assert summary["step"]["counted"] == 2
    assert summary["missing"]
    assert "missing" in done.words
