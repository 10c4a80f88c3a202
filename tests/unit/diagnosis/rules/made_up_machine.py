"""A machine under a program, made up: looks at it ten a second, steps, and the program's source."""

from collections.abc import Iterable

from ridgeline.diagnosis.case import Case
from ridgeline.records.finding import Finding
from ridgeline.records.run import (
    Capture,
    DeviceSample,
    DeviceSeen,
    Environment,
    Flags,
    ProcessSample,
    RunFile,
    Step,
    Target,
    Telemetry,
)
from ridgeline.records.run_summary import Telemetered
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.made_up_steps import MS, noisy

LOOKS = 40


def looks(
    *devices: DeviceSample, host: float | None = None, processes: Iterable[ProcessSample] = ()
) -> tuple[Telemetry, ...]:
    return tuple(
        Telemetry(
            at_ns=i * 100 * MS, devices=devices, host_cpu_percent=host, processes=tuple(processes)
        )
        for i in range(LOOKS)
    )


def run_file(cores: int = 8, **variables: str) -> RunFile:
    return RunFile(
        name="r",
        target=Target(kind="script", name="train.py"),
        environment=Environment(cores=cores, variables=variables),
    )


def capture(threads: int = 8, *, gpu: bool = False) -> Capture:
    device = DeviceSeen(kind="cuda" if gpu else "cpu")
    return Capture(stepping="optimizer", flags=Flags(threads=threads), device=device)


def case(
    telemetry: tuple[Telemetry, ...] = (),
    *,
    gpu: bool = False,
    busy: float = 0.9,
    steps: Iterable[Step] | None = None,
    source: str = "",
    seen: Telemetered | None = None,
    cores: int = 8,
    threads: int = 8,
    **changed: object,
) -> Case:
    given: dict[str, object] = {
        "on_gpu": gpu,
        "run": run_file(cores),
        "capture": capture(threads, gpu=gpu),
        "steps": tuple(noisy(40) if steps is None else steps),
        "telemetry": telemetry,
        "times": made.times({"forward": 0.4, "backward": 0.5}, gpu=gpu),
        "telemetered": seen or Telemetered(),
        "work": made.work(busy, gpu=gpu),
        "sources": SourceFiles(texts={"train.py": source} if source else {}),
    }
    return Case(**(given | changed))  # type: ignore[arg-type]


def only(findings: Iterable[Finding]) -> Finding:
    (one,) = findings
    return one
