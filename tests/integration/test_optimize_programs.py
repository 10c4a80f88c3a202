"""Whole programs under `ridgeline optimize`: those that go wrong, and what it says of them.

Each is run as a person would; all are started two at a time before the first test looks at one.
What is asserted is what was said and done, never how fast the machine was.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import ridgeline
from ridgeline.harness.trials import trial_process
from ridgeline.records.run import Target
from ridgeline.records.trial import Plan
from ridgeline.report.reasons import explain
from tests.integration.cold_and_warm import interruptible

pytestmark = pytest.mark.reliability
COMMAND = str(Path(sys.executable).with_name("ridgeline"))
STARTED = "started"
LONGEST_S = 240.0

TRAIN = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
print("the program's own words", flush=True)
class Store(Dataset):
    def __init__(self):
        with open("data/rows.txt") as file:
            self.rows = torch.tensor([[float(word) for word in line.split()] for line in file])
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        refuse()
        time.sleep(0.004)
        return self.rows[index % len(self.rows)]
def refuse(): pass
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train():
    for x in DataLoader(Store(), batch_size=4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
"""
REFUSES = """
def refuse():
    if get_worker_info() is not None:
        raise OSError("the store has one client alone\\nand says so in two lines")
"""
THREE_STEPS = (
    TRAIN
    + """
for _ in range(3):
    optimizer.zero_grad(); model(torch.ones(2, 8)).sum().backward(); optimizer.step()
"""
)
DOES_NOT_END = """\
import subprocess, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
SAVES_AT_ITS_END = """
try:
    train()
except BaseException:
    open("crashed", "w").close()
    raise
finally:
    open("saved", "w").close()
"""
PROGRAMS = {
    "raises": "import torch\nprint('loading')\nraise RuntimeError('no such data: 17')\n",
    "needs an argument": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--data', required=True)\nparser.parse_args()\n"
    ),
    "takes no step": "import torch\nprint(torch.ones(3).sum())\n",
    "hangs at once": f"import time\nopen('{STARTED}', 'w').close()\ntime.sleep(600)\n",
    "trains": TRAIN + "train()\n",
    "does not end": DOES_NOT_END + TRAIN + SAVES_AT_ITS_END,
    "refuses workers": TRAIN + REFUSES + "train()\n",
}  # fmt: skip


class Ran(Struct, frozen=True):
    code: int
    out: str
    err: str
    folder: Path
    left: tuple[int, ...] = ()
    """Processes that work in its folder, some time after it ended."""

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"data", "train.py"}

    def rung(self, fix: str) -> Any:
        found = [row for row in self.document["ladder"] if row["changes"][:1] == [fix]]
        return found[0]


def _folder(home: Path, source: str) -> Path:
    home.mkdir()
    (home / "train.py").write_text(source)
    (home / "data").mkdir()
    rows = [" ".join(str((3 * row + column) % 7) for column in range(8)) for row in range(16)]
    (home / "data" / "rows.txt").write_text("\n".join(rows))
    return home


def _optimize(
    folder: Path, *words: str, stop_when: Callable[[Path, str], bool] | None = None
) -> Ran:
    """`stop_when`: asked of what was said so far; then Ctrl-C, to the whole process group."""
    with (
        (folder.parent / f"{folder.name}.out").open("w+") as out,
        (folder.parent / f"{folder.name}.err").open("w+") as err,
        subprocess.Popen(
            [COMMAND, "optimize", *words], cwd=folder, stdout=out, stderr=err,
            stdin=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True, preexec_fn=interruptible,
        ) as process,
    ):  # fmt: skip
        said = Path(err.name)
        try:
            deadline = time.monotonic() + LONGEST_S
            while process.poll() is None and time.monotonic() < deadline:
                if stop_when is not None and stop_when(folder, said.read_text()):
                    os.killpg(process.pid, signal.SIGINT)
                    break
                time.sleep(0.1)
            code = process.wait(max(deadline - time.monotonic(), 30))
        finally:
            process.kill()
        return Ran(code, Path(out.name).read_text(), said.read_text(), folder, _left_in(folder))


def _left_in(folder: Path) -> tuple[int, ...]:
    deadline = time.monotonic() + 20
    while (found := _working_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _working_in(folder: Path) -> tuple[int, ...]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == folder.resolve() and (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone meanwhile
            continue
    return tuple(found)


def _went_on(folder: Path, said: str) -> bool:
    """The loader's workers are settled, and the next change is being tried."""
    lines = said.splitlines()
    settled = [n for n, line in enumerate(lines) if "✗ DataLoader workers (workers" in line]
    return bool(settled) and len(lines) > settled[0] + 1


def _is_being_proven(folder: Path, said: str) -> bool:
    """The race and a trial of the baseline are over, and what won is run in fresh processes."""
    return "proving in fresh processes" in said


def _twice(folder: Path, *words: str) -> list[Ran]:
    return [_optimize(folder, *words, stop_when=_is_being_proven) for _ in range(2)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Any]"]]:
    home = tmp_path_factory.mktemp("optimized")
    module = _folder(home / "module", PROGRAMS["trains"])
    (module / "package").mkdir()
    (module / "train.py").rename(module / "package" / "train.py")
    folders = {name: _folder(home / name.replace(" ", "-"), PROGRAMS[name]) for name in PROGRAMS}
    folders["has no time"] = _folder(home / "has-no-time", PROGRAMS["trains"])
    code = _folder(home / "code", "")

    def started(folder: Path, said: str) -> bool:
        return (folder / STARTED).exists()

    with ThreadPoolExecutor(2) as pool:
        jobs: dict[str, Future[Any]] = {
            "refuses workers": pool.submit(
                _optimize, folders["refuses workers"], "--json", "--budget", "1h", "train.py",
                stop_when=_went_on,
            ),
            "trains": pool.submit(
                _twice, folders["trains"], "--json", "--keep-exact", "train.py"
            ),
            "module": pool.submit(
                _optimize, module, "--no-write", "--json", "-m", "package.train",
                stop_when=_is_being_proven,
            ),
            "takes three steps": pool.submit(
                _optimize, code, "-q", "-o", "made.json", "-c", THREE_STEPS
            ),
            "hangs at once": pool.submit(
                _optimize, folders["hangs at once"], "train.py", stop_when=started
            ),
        }  # fmt: skip
        jobs["does not end"] = pool.submit(
            _optimize, folders["does not end"], "train.py", stop_when=_is_being_proven
        )
        for name in ("raises", "needs an argument", "takes no step"):
            jobs[name] = pool.submit(_optimize, folders[name], "train.py")
        jobs["has no time"] = pool.submit(
            _optimize, folders["has no time"], "--budget", "1s", "train.py"
        )
        yield jobs


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "RuntimeError: no such data: 17"),
        ("needs an argument", "the following arguments are required: --data"),
        ("takes no step", "no step was seen"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_in_its_own_words(
    ran: dict[str, "Future[Any]"], name: str, says: str
) -> None:
    done = ran[name].result()
    assert done.code == 4
    assert done.out == ""
    assert says in done.err
    assert str(Path(ridgeline.__file__).parent) not in done.err
    assert done.files() <= {".ridgeline"}


def test_a_program_that_waits_for_a_thread_of_its_own_is_ended(
    ran: dict[str, "Future[Any]"],
) -> None:
    """After the steps that were asked for; and what it started goes with it."""
    done = ran["does not end"].result()
    assert done.code == 130, done.err
    assert " baseline " in done.out
    assert done.left == ()


def test_nothing_of_a_program_runs_after_the_steps_that_were_asked_for(
    ran: dict[str, "Future[Any]"],
) -> None:
    """In the run that is diagnosed as in the trials: a checkpoint would be written over."""
    assert ran["does not end"].result().files().isdisjoint({"crashed", "saved"})


def test_too_few_steps_are_said_and_nothing_is_claimed(ran: dict[str, "Future[Any]"]) -> None:
    done = ran["takes three steps"].result()  # given as code, which is run like any program
    assert done.code == 4
    assert done.out == ""
    assert done.files() == {".ridgeline", "made.json"}, "asked for; there is nothing to report"
    found = json.loads((done.folder / "made.json").read_bytes())
    assert found["stopped"].startswith("the program ended after 3 steps: 14 are needed")
    assert not any(row["kept"] for row in found["ladder"])


def test_a_budget_too_short_for_the_program_is_kept_and_said(
    ran: dict[str, "Future[Any]"],
) -> None:
    done = ran["has no time"].result()
    assert done.code == 4
    assert done.out == ""
    assert "the budget ended before train.py had taken enough steps" in done.err
    assert done.left == ()


def test_what_is_known_is_one_document(ran: dict[str, "Future[Any]"]) -> None:
    first, _ = ran["trains"].result()
    assert first.code == 130
    found = first.document  # nothing else on stdout, although the program prints
    assert "the program's own words" not in first.out + first.err
    assert found["ladder"][0]["kind"] == "baseline"
    assert found["baseline_ms"] > 0
    assert found["total"]["like_for_like"] is None
    assert found["stopped"] == "interrupted"
    assert first.rung("loader-workers")["reason"] == "interrupted"
    assert first.files() == {".ridgeline", "optimized_train.md", "optimized_train.svg"}


def test_exact_results_leave_out_what_rounds(ran: dict[str, "Future[Any]"]) -> None:
    first, _ = ran["trains"].result()
    rounding = [row for row in first.document["ladder"] if row["alters"] == "rounding"]
    assert rounding
    assert not any(row["kept"] for row in rounding)
    assert any(row["reason"] == "it alters rounding" for row in rounding)


def test_a_second_call_goes_on_where_the_first_ended(ran: dict[str, "Future[Any]"]) -> None:
    first, second = (one.document for one in ran["trains"].result())
    assert first["trials"] > 0
    assert second["remembered"] == first["trials"], "what the first ran was kept"
    assert second["run"] == first["run"], "the diagnosis too"
    assert "--fresh" in second["replay"]


def test_a_module_is_optimized_where_its_data_lie(ran: dict[str, "Future[Any]"]) -> None:
    done = ran["module"].result()
    assert done.code == 130
    assert done.document["baseline_ms"] > 0
    assert done.files() == {".ridgeline", "package"}, "--no-write leaves no file"


def test_a_change_under_which_it_fails_is_rejected_and_the_rest_goes_on(
    ran: dict[str, "Future[Any]"],
) -> None:
    done = ran["refuses workers"].result()
    rung = done.rung("loader-workers")
    assert rung["status"] == "rejected"
    assert rung["reason"] == "OSError: the store has one client alone"
    assert not rung["kept"]
    lines = done.err.splitlines()
    after = [n for n, line in enumerate(lines) if "✗ DataLoader workers (workers" in line]
    assert lines[after[0] + 1 :]


def test_ctrl_c_reports_what_is_known_and_leaves_nothing_running(
    ran: dict[str, "Future[Any]"],
) -> None:
    """The program is interrupted when its baseline is known and the winner of the race is still to
    be proven: on a busy machine a search that has proven it may end before the signal."""
    done, _ = ran["trains"].result()
    assert done.code == 130
    assert done.document["stopped"] == "interrupted"
    assert done.document["baseline_ms"] > 0
    assert any(row["reason"] == "interrupted" for row in done.document["ladder"])
    assert "Traceback" not in done.err
    assert done.left == ()


def test_ctrl_c_before_anything_is_known_is_a_word(ran: dict[str, "Future[Any]"]) -> None:
    done = ran["hangs at once"].result()
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "ridgeline: stopped"
    assert "Traceback" not in done.err
    assert done.left == ()


def test_a_trial_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    source = "import subprocess, time\nsubprocess.Popen(['sleep', '600'], cwd='apart')\n"
    (tmp_path / "apart").mkdir()
    (tmp_path / "train.py").write_text(source + PROGRAMS["hangs at once"])
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        target = Target(kind="script", name="train.py", arguments=())
        found = trial_process.run(target, Plan(), tmp_path / "home", timeout_s=15)
    finally:
        os.chdir(before)
    assert found.trial is None
    assert explain(found.failure) == "it did not end within 15 s"
    assert (tmp_path / STARTED).exists()
    assert _left_in(tmp_path / "apart") == ()
