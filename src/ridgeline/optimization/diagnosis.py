"""The run a search begins with: the program as it is, recorded and concluded."""

import contextlib
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.errors import TargetError
from ridgeline.fixes.cross_entropies import CLASSES
from ridgeline.harness.trials.trial_process import IN_A_TRIAL, NO_INPUT
from ridgeline.harness.usercode.child_process import no_leftovers, run_to_end
from ridgeline.machine import nvml, processor
from ridgeline.optimization.launcher import MODULE, behind, recorded
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground, NumaNode
from ridgeline.records.run import DeviceSeen, Target
from ridgeline.records.run_directory import RunDirectory, restarted_name, run_name
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.sites import OpSite
from ridgeline.report.reasons import verdict_reason
from ridgeline.trace.analyses.kernels import category_of

DIAGNOSED = 60
"""Steps of the run that is diagnosed."""
LINGERS_S = 8.0
"""That it may take to end after the last of them."""


class Diagnosed(Struct, frozen=True, kw_only=True):
    directory: RunDirectory
    summary: RunSummary
    ground: Ground
    concluding_s: float = 0.0
    """How long reading the run took."""

    @property
    def findings(self) -> Sequence[Finding]:
        return self.summary.findings.findings


def diagnosed(target: Target, runs: Path, home: Path, *, again: bool, limit_s: float) -> Diagnosed:
    """By an earlier call where there was one: the run is kept like any other."""
    noted = home / "run"
    if not again and noted.is_file():
        directory = RunDirectory(runs / noted.read_text().strip())
        if directory.path.is_dir() and (known := _concluded(directory)) is not None:
            return known
    if target.kind == "module" and target.name == MODULE and behind(target) is None:
        raise TargetError(
            "torchrun was given no script that is there",
            "e.g. ridgeline optimize torchrun --nproc-per-node 2 train.py",
        )
    found = looked_at(target, runs, limit_s)
    home.mkdir(parents=True, exist_ok=True)
    noted.write_text(found.directory.path.name)
    return found


def looked_at(
    target: Target, runs: Path, limit_s: float, *, compiled: Path | None = None
) -> Diagnosed:
    """`compiled`: where what it would compile lies ready."""
    ready = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} if compiled is not None else {}
    directory = _run(target, runs, limit_s, ready)
    found = _concluded(directory)
    if found is None:
        summary, _ = concluded_case(directory)
        why = verdict_reason(summary.verdict)
        raise TargetError(f"{target.name}: {why}", "see `ridgeline run`")
    return found


def _concluded(directory: RunDirectory) -> Diagnosed | None:
    began = time.monotonic()
    summary, case = concluded_case(directory)
    if case is None or not summary.step.median_ms:
        return None
    ground = ground_of(case, summary.findings.findings)
    return Diagnosed(
        directory=directory, summary=summary, ground=ground, concluding_s=time.monotonic() - began
    )


def _run(target: Target, runs: Path, limit_s: float, variables: Mapping[str, str]) -> RunDirectory:
    """Run the program in a directory made here, so that a run which another command makes in the
    same folder meanwhile is never taken for this one."""
    directory = RunDirectory.make(runs, run_name(target.kind, _program(target), datetime.now()))
    try:
        return _run_into(directory, target, limit_s, variables)
    finally:
        with contextlib.suppress(OSError):
            directory.path.rmdir()  # it is empty only if nothing could be recorded


def _run_into(
    directory: RunDirectory, target: Target, limit_s: float, variables: Mapping[str, str]
) -> RunDirectory:
    path = directory.path.absolute()
    ours = ["-q", "--run-dir", str(path), "--stop-after", str(DIAGNOSED), "--at-once"]
    mark = str(path)
    environment = os.environ | variables | {IN_A_TRIAL: mark}
    hung = Hung(directory)
    with no_leftovers(IN_A_TRIAL, mark):
        ended = run_to_end(
            [sys.executable, *recorded(target, ours)], environment, limit_s, hung.look
        )
    name = "the code" if target.kind == "code" else target.name
    if ended.code is None:
        raise TargetError(
            f"the budget ended before {name} had taken {DIAGNOSED} steps: it ran for "
            f"{limit_s:.0f} s",
            "give it fewer data or a larger --budget",
        )
    made = hung.made()
    if not made or (ended.code and not hung.ended):
        why = f"ended with exit code {ended.code}" if ended.code else "could not be recorded"
        why = f"was killed by {ended.signal}" if ended.signal else why
        said = ended.last_lines[-6:]
        why += ", and has no standard input here" * (NO_INPUT in said)
        raise TargetError(f"{name} {why}", "\n  ".join(["it said:", *said]) if said else "")
    return made[-1]


def _program(target: Target) -> str:
    """Return what the run is named after: the script behind a launcher, else the target itself."""
    place = behind(target)
    return target.name if place is None else Path(target.arguments[place]).stem


class Hung:
    """A program that goes on after it was told to stop: it waits for a thread of its own, or took
    the exception that was to end it for another."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._since = 0.0
        self.ended = False
        """By us."""

    def made(self) -> list[RunDirectory]:
        """Return the run and the runs of a launcher's further attempts, as far as they began."""
        path = self._directory.path
        attempts = itertools.count(1)
        again = (RunDirectory(path.with_name(restarted_name(path.name, n))) for n in attempts)
        begun = itertools.takewhile(lambda run: run.run_file.exists(), again)
        return [self._directory, *begun] if self._directory.run_file.exists() else []

    def look(self, pid: int) -> None:
        """While it runs."""
        if self.ended or not any(one.stopping_file.exists() for one in self.made()):
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since < LINGERS_S:
            return
        if any(capture.ended != "running" for one in self.made() for capture in one.captures()):
            return  # it waits until its record is written
        self.ended = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


LARGE, TILE = 1024, 64
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "linear", "matmul", "attention")
_HOLD_PRODUCTS = ("transformer", "lstm", "gru", "rnn", "einsum", "mv", "addmv", "dot")
"""Words in the names of operators that multiply matrices inside."""
PRODUCT_KINDS = frozenset({"matmul", "convolution", "attention"})
_CONVOLUTIONS = ("convolution", "conv2d", "conv1d", "conv3d")


def ground_of(case: Case, findings: Sequence[Finding] = ()) -> Ground:
    capture = case.capture
    if capture is None:
        return Ground()
    cuda = capture.device.kind == "cuda"
    products = [site for site in case.sites.ops if _named(site, _PRODUCTS)]
    multiplying = [site for site in case.sites.ops if _multiplies(site)]
    here = case.processors > 0  # read where it ran: nothing else knows how its machine is laid out
    gpu = _gpu_address(capture.device) if here and cuda else ""
    budget = case.shares.undisturbed if case.shares is not None else {}
    shares = {str(kind): share for kind, share in budget.items()}
    return Ground(
        device=capture.device.kind,
        capability=_capability(capture.device.architecture),
        cores=capture.flags.allowed_cores or (case.run.environment.cores if case.run else 1),
        torch=_version(capture.flags.torch),
        emulated=case.emulated,
        compiler=find_spec("triton") is not None if cuda else _can_compile(),
        ranks=case.ranks,
        # One that says where its steps end may do either.
        trains=capture.stepping in ("optimizer", "backward") or bool(capture.optimizers),
        loaders=capture.loaders,
        optimizers=capture.optimizers,
        modules=tuple(one for one in capture.modules if not one.loss),
        flags=capture.flags,
        autocast=capture.flags.autocast,
        compiled=bool(capture.compilations),
        convolutions=any(_named(site, _CONVOLUTIONS) for site in case.sites.ops),
        products_share=_most_share(case, multiplying),
        products_least_share=_share(case, multiplying) if case.sites.ops else None,
        loss_share=_share(case, [site for site in case.sites.ops if _wide_loss(site)]),
        odd_widths=any(_odd(site) for site in products),
        shapes_change=_shapes_change(products),
        busy=_busy(case),
        input_share=shares.get("input", 0.0),
        optimizer_share=_optimizer_share(case),
        system_share=capture.system_share,
        overhead_share=shares.get("overhead", 0.0),
        copy_share=shares.get("transfer", 0.0),
        copies=_copies(case),
        findings=tuple(dict.fromkeys(finding.rule for finding in findings)),
        variables=dict(case.run.environment.variables) if case.run is not None else {},
        processors=case.processors,
        nodes=_nodes() if here else (),
        gpu_address=gpu,
        gpu_node=processor.node_of(gpu),
    )


def _nodes() -> tuple[NumaNode, ...]:
    """With the cores this process may use, and so a trial it starts."""
    ask = getattr(os, "sched_getaffinity", None)
    return processor.nodes(ask(0)) if ask is not None else ()


def _gpu_address(device: DeviceSeen) -> str:
    return processor.gpu_address(nvml.Address(uuid=device.uuid, pci=device.pci, name=device.name))


def _named(site: OpSite, words: tuple[str, ...]) -> bool:
    name = site.op.removeprefix("aten::").lstrip("_")
    return any(name == word or word in name.split("_") or name.startswith(word) for word in words)


def _share(case: Case, sites: list[OpSite]) -> float:
    if case.on_gpu:
        return case.device_share(sum(site.device_ns for site in sites))
    return case.host_share(sum(site.host_ns for site in sites))


def _multiplies(site: OpSite) -> bool:
    """Return whether a site's work is or contains matrix products, as in fused and recurrent
    layers."""
    names = [kernel.name for kernel in site.kernels] or [""]
    kinds = {category_of(name, site.op) for name in names}
    return _named(site, (*_PRODUCTS, *_HOLD_PRODUCTS)) or not kinds.isdisjoint(PRODUCT_KINDS)


def _most_share(case: Case, sites: list[OpSite]) -> float | None:
    """Return the largest share of an untraced step that these sites, and those left out of the
    list, may take; None if no operator was recorded.

    Tracing makes a step of many small operators several times as long, but hardly lengthens the
    large operators in it. So on a CPU the sites' traced time is divided by the untraced step.
    """
    if not case.sites.ops:
        return None
    if case.on_gpu:
        launched = sum(site.device_ns for site in sites) + case.sites.left_out_ns
        return case.device_share(launched + _replayed_products_ns(case))
    taken_ms = (sum(site.host_ns for site in sites) + case.sites.left_out_ns) / 1e6
    return _of_untraced_step(case, taken_ms)


def _busy(case: Case) -> float:
    """Return the share of the step in which the device works; 0 if it is not known. On a CPU, where
    tracing lengthens the time between operators, this is the largest share that is possible."""
    if case.on_gpu or case.work is None:
        return case.busy or 0.0
    return _of_untraced_step(case, case.work.operator_ms) or 0.0


def _of_untraced_step(case: Case, taken_ms: float) -> float | None:
    length_ms = min(filter(None, (case.times.median_ms, case.step_ms)), default=0.0)
    return min(taken_ms / length_ms, 1.0) if length_ms else None


def _replayed_products_ns(case: Case) -> float:
    """Return the time of a step in products of replayed CUDA graphs, which no operator launches."""
    window = case.study.window if case.study is not None else None
    rows = [row for row in case.kernels if not row.op and row.category in PRODUCT_KINDS]
    return sum(row.total_ns for row in rows) / max(window.steps, 1) if window is not None else 0.0


def _optimizer_share(case: Case) -> float | None:
    """Return the optimizer's share of the step; None if it is not known. On a GPU only phases timed
    by the device's own clock tell, because the host runs ahead of the device."""
    if not case.times.phases or (case.on_gpu and case.times.clock != "device"):
        return None
    return sum(phase.share for phase in case.times.phases if phase.phase == "optimizer")


def _odd(site: OpSite) -> bool:
    """Of a matrix's sides: batches and images have others."""
    matrices = [sides for sides in site.dims if len(sides) == 2 and all(_whole(sides))]
    return any(side > LARGE and side % TILE for sides in matrices for side in sides)


def _copies(case: Case) -> float | None:
    if not case.sites.ops:
        return None
    return sum(one.copies for one in case.sites.copies if one.direction == "to device")


def _wide_loss(site: OpSite) -> bool:
    """Filling the gradient of a loss with zeros is a part of it."""
    own = any(word in site.op or site.inside(word) for word in ("log_softmax", "nll_loss"))
    wide = (side for sides in site.dims for side in sides if isinstance(side, int))
    return own and max(wide, default=0) >= CLASSES


def _whole(sides: Sequence[object]) -> list[bool]:
    return [isinstance(side, int) for side in sides]


def _shapes_change(sites: list[OpSite]) -> bool:
    """Some product is not called a whole number of times a step: sizes differ between steps."""
    return any(abs(site.calls - round(site.calls)) > 1e-6 for site in sites if site.dims)


def _capability(architecture: str) -> tuple[int, int]:
    """sm_90 → (9, 0)"""
    digits = "".join(one for one in architecture if one.isdigit())
    return (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 else (0, 0)


def _version(text: str) -> tuple[int, int]:
    parts = text.split(".")
    if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit():
        return int(parts[0]), int(parts[1])
    return 0, 0


def _can_compile() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
