"""Cases of programs that call many small operators, made up."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import Capture, ModuleSeen, OptimizerSeen, Phase
from ridgeline.records.sites import OpSite, SiteKernel, SitePhase, Sites
from ridgeline.records.trace import Cause, Launch, Place
from ridgeline.records.trace import Phase as TracedPhase
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.made_up_verdict import study, times, work

MS = 1e6
ENGINE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
SHAPE = (64, 64)
PARAMETERS = 100


def site(
    op: str, calls: float = 1.0, ms: float = 0.1, *, at: tuple[str, int] = ("main", 20),
    phase: SitePhase = "forward", dims: Sequence[Any] = (SHAPE,), within: tuple[str, ...] = (),
    module: str = "", device_ms: float = 0.0, kernels: float | None = None,
) -> OpSite:  # fmt: skip
    """`ms`: of all its calls; `device_ms`: likewise, one kernel a call where not said."""
    count = (calls if kernels is None else kernels) if device_ms else 0.0
    return OpSite(
        op=f"aten::{op}" if "::" not in op and not op.endswith("0") else op,
        calls=calls, host_ns=ms * MS, device_ns=device_ms * MS, exposed_ns=device_ms * MS,
        place=Place(file="train.py", function=at[0], line=at[1]), phase=phase,
        dims=tuple(list(d) for d in dims), within=within, module=module,
        kernels=(SiteKernel(name="k", count=count, ns=device_ms * MS),) if count else (),
    )  # fmt: skip


def gradients(number: int = PARAMETERS) -> list[OpSite]:
    """What the backward shows of parameters."""
    node = ENGINE + ACCUMULATE
    return [
        site(node, number, 0.2, phase="backward", dims=()),
        site(ACCUMULATE, number, 0.2, phase="backward", within=(node,)),
    ]


def case(
    ops: Sequence[OpSite],
    *,
    source: str = "",
    shares: Mapping[Phase, float] | None = None,
    gpu: bool = False,
    busy: float = 0.5,
    causes: Mapping[Cause, float] | None = None,
    ms: float = 100.0,
    steps: int = 3,
    capture: Capture | None = None,
    kind: str = "run",
    stacks: bool = True,
) -> Case:
    """Of a step of 100 ms, half of it in the forward and the rest, 30 % in the backward, 20 % in
    the optimizer."""
    parts = shares or {"forward": 0.4, "backward": 0.3, "optimizer": 0.2, "other": 0.1}
    seen = study(causes or {"launch-bound": 1 - busy}, ms=ms)
    names = {"forward": "forward", "backward": "backward", "optimizer": "optimizer",
             "other": "other"}  # fmt: skip
    seen = replace(
        seen, launch=Launch(empty_queue=1.0),
        phases=tuple(
            TracedPhase(phase=names[p], host_ns=round(steps * s * ms * MS), device_ns=0, share=s)
            for p, s in parts.items() if p in names
        ),
    )  # fmt: skip
    return Case(
        kind=kind,  # type: ignore[arg-type]
        on_gpu=gpu, capture=capture, study=seen, work=work(busy, gpu=gpu, ms=ms),
        times=times(parts, gpu=False, ms=ms) if kind == "run" else Case().times,
        sites=Sites(ops=tuple(ops), stacks=stacks, shapes=any(s.dims for s in ops), steps=steps),
        sources=SourceFiles(texts={"train.py": source} if source else {}),
    )  # fmt: skip


def captured(name: str = "AdamW", **options: str) -> Capture:
    return Capture(
        stepping="optimizer",
        optimizers=(OptimizerSeen(name=name, steps=40, anchor=True, place="train.py:9",
                                  options=options),),
        modules=(ModuleSeen(name="Net", parameters=1000, place="train.py:7"),),
    )  # fmt: skip
