"""Cases in which the host waits for the device, or copies to it: a step of 10 ms, 60 % busy."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.sites import CopySite, Sites, SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.made_up_verdict import capture, study, times, work

MS = 1e6
ITEM = ("aten::item", "aten::_local_scalar_dense")
TO = ("aten::to", "aten::_to_copy", "aten::copy_")


def at(line: int = 1, function: str = "main") -> Place:
    return Place(file="train.py", line=line, function=function)


def case(text: str = "", *, waits: tuple[SyncSite, ...] = (), copies: tuple[CopySite, ...] = (),
         busy: float = 0.6, loader: bool = False, **changed: Any) -> Case:  # fmt: skip
    made = Case(
        kind="run",
        on_gpu=True,
        capture=capture(loader=loader),
        times=times({"forward": 0.5, "backward": 0.5}, ms=10.0),
        study=study({"synchronisation": 1 - busy}, ms=10.0),
        work=work(busy, ms=10.0),
        sites=Sites(waits=waits, copies=copies, stacks=True, steps=3),
        sources=SourceFiles(texts={"train.py": text} if text else {"train.py": "pass\n"}),
    )
    return replace(made, **changed)


def wait(idle_ms: float = 2.0, **changed: Any) -> SyncSite:
    made = SyncSite(
        ops=ITEM, call="cudaStreamSynchronize", place=at(), via=("item",), direction="to host",
        times=20.0, waits=20.0, bytes=80.0, host_ns=3 * MS, idle_ns=idle_ms * MS,
    )  # fmt: skip
    return replace(made, **changed)


def copy(exposed_ms: float = 3.0, **changed: Any) -> CopySite:
    made = CopySite(
        direction="to device", pageable=True, op="aten::to", place=at(), via=("to",),
        dims=(64, 3, 224, 224), dtype="float", copies=1.0, bytes=38.5e6,
        device_ns=exposed_ms * MS, exposed_ns=exposed_ms * MS, path_ns=exposed_ms * MS,
        host_ns=exposed_ms * MS,
    )  # fmt: skip
    return replace(made, **changed)


def held(idle_ms: float = 0.1, host_ms: float = 3.2, **changed: Any) -> SyncSite:
    """The wait for such a copy."""
    made = wait(idle_ms, ops=TO, via=("to",), direction="to device", times=1.0, waits=1.0,
                bytes=38.5e6, host_ns=host_ms * MS)  # fmt: skip
    return replace(made, **changed)
