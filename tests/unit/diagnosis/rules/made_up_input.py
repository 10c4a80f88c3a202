"""Cases of programs that wait for their data: a step of 100 ms, half of it in the loader."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.shares import Kind, Shares
from ridgeline.records.run import (
    Capture,
    DeviceSeen,
    Environment,
    InputLines,
    LoaderSeen,
    PythonLine,
    PythonView,
    RunFile,
    Step,
    Target,
)
from ridgeline.records.run_summary import Telemetered, Throughput
from ridgeline.records.sites import Callee, InputSite, InputSites
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.made_up_verdict import study, times, work

MS = 1_000_000
FILE = "train.py"
SOURCE = """\
import json
import random
import torch
from torch.utils.data import DataLoader, Dataset


def parse(text):
    values = json.loads(text)
    return torch.tensor(values)


def flip(image):
    return image if random.random() < 0.5 else image.flip(0)


class Records(Dataset):
    def __getitem__(self, index):
        with open(self.paths[index]) as file:
            text = file.read()
        return parse(text)


def prepare(worker):
    torch.set_num_threads(THREADS)


val_loader = DataLoader(Records(), 32)
loader = DataLoader(Records(), 32, num_workers=WORKERS, worker_init_fn=prepare)
for batch in loader:
    pass
"""
PARSE, RETURN, DRAW, OPEN, READ, THREADS, LOADER, LOOP = 8, 9, 13, 18, 19, 24, 28, 29


def line(number: int, function: str, share: float, **changed: Any) -> PythonLine:
    source = SOURCE.splitlines()[number - 1].strip()
    made = PythonLine(
        file=FILE, line=number, function=function, share=share, source=source, process="main"
    )
    return replace(made, **changed)


def view(*lines: PythonLine, workers: int = 0, idle: float = 0.0, samples: int = 200) -> PythonView:
    return PythonView(
        worker_samples=samples if workers else 0,
        worker_idle_samples=round(samples * idle) if workers else 0,
        workers=workers,
        input=InputLines(
            main_samples=0 if workers else samples, worker_samples=samples if workers else 0,
            lines=tuple(replace(one, process="worker") if workers else one for one in lines),
        ),
    )  # fmt: skip


def traced(*callees: Callee, line: int = 7, function: str = "parse", ms: float = 45) -> InputSites:
    """A function of the user's in the loader of the program's own process."""
    place = Place(file=FILE, line=line, function=function, ns=round(ms * MS))
    return InputSites(kind="single", ns=50.0 * MS, sites=(InputSite(place=place, callees=callees),))


def steps(begun: tuple[int, ...] = (), extra_ms: float = 0.0, count: int = 40) -> tuple[Step, ...]:
    made, at = [], 0
    for index in range(count):
        extra = extra_ms if index in begun else 0.0
        dur = round((100 + extra) * MS)
        host = {"input": round((2 + extra) * MS), "forward": 98 * MS}
        made.append(Step(index=index, start_ns=at, dur_ns=dur, host=host))  # type: ignore[arg-type]
        at += dur
    return tuple(made)


def case(
    share: float = 0.5, *, gpu: bool = False, workers: int = 0, cores: int = 16,
    used: float | None = None, worker_cores: float | None = None, others: float | None = 0.0,
    epochs: int = 1, begun: tuple[int, ...] = (0,), pinned: bool = False, stays: bool = False,
    threads: int = 1, **changed: Any,
) -> Case:  # fmt: skip
    loader = LoaderSeen(
        dataset="Records", workers=workers, batch_size=32, batches=46, place=f"{FILE}:{LOOP}",
        epochs=epochs, begun=begun, pin_memory=pinned, persistent_workers=stays,
    )  # fmt: skip
    rest = 1 - share
    text = SOURCE.replace("WORKERS", str(workers)).replace("THREADS", str(threads))
    of: dict[Kind, float] = {
        "input": share, "transfer": 0.0, "overhead": 0.1 * rest, "communication": 0.0,
        "compute": 0.6 * rest, "memory": 0.3 * rest,
    }  # fmt: skip
    given: dict[str, Any] = {
        "kind": "run", "on_gpu": gpu,
        "run": RunFile(
            name="r", target=Target(kind="script", name=FILE), environment=Environment(cores=cores)
        ),
        "capture": Capture(
            stepping="optimizer", steps=46, loaders=(loader,),
            device=DeviceSeen(kind="cuda" if gpu else "cpu"),
        ),
        "times": times({"input": share, "forward": rest}, gpu=gpu),
        "throughput": Throughput(samples_per_step=32.0),
        "work": work(0.9 * rest, gpu=gpu),
        "study": study({"input": share} if share else {"launch-bound": 0.1}),
        "shares": Shares(of=of),
        "telemetered": Telemetered(
            program_cores=used, worker_cores=worker_cores, other_cores=others, cores=cores,
            workers=workers,
        ),
        "sources": SourceFiles(texts={FILE: text}),
    }  # fmt: skip
    return Case(**{**given, **changed})
