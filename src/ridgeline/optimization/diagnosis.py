"""Finds out what is known of a program before its fixes are tried: it is run as it is, the watcher
of that run concludes it, and the conclusion tells on what ground a fix would stand."""

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
from ridgeline.diagnosis.stored_case import stored_case
from ridgeline.errors import TargetError
from ridgeline.fixes.cross_entropy import MIN_CLASSES
from ridgeline.harness.capture.launch import IN_A_TRIAL
from ridgeline.harness.trials.trial_process import NO_INPUT
from ridgeline.harness.usercode.child_process import no_leftovers, run_to_end
from ridgeline.machine import nvml, processor
from ridgeline.optimization.launcher import MODULE, recorded, script_place
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.run import Target
from ridgeline.records.run_directory import RunDirectory, restarted_name, run_name
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.sites import OpSite
from ridgeline.report.reasons import verdict_reason
from ridgeline.trace.analyses.kernels import category_of

DIAGNOSED_STEPS = 60
DIAGNOSIS_SHARE = 0.2
"""A program of long steps takes fewer: it is told to end after this share of the time, once its
trace is recorded, or after twice this share without a trace."""
MAX_EXIT_S = 8.0
"""Time that the program may take to end after the last of these steps, before it is killed."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """A concluded run of the unchanged program, and the ground for its fixes."""

    directory: RunDirectory
    summary: RunSummary
    ground: Ground

    @property
    def findings(self) -> Sequence[Finding]:
        return self.summary.findings.findings

    @property
    def step_ms(self) -> float:
        return self.summary.step.median_ms or 0.0


def diagnose(target: Target, runs: Path, home: Path, *, again: bool, limit_s: float) -> Diagnosis:
    """Return the diagnosis of a program, from the run of an earlier call if there is one. Otherwise
    the program is run, and the run is kept in `runs` like any other."""
    noted = home / "run"
    if not again and noted.is_file():
        directory = RunDirectory(runs / noted.read_text().strip())
        if directory.path.is_dir():
            with contextlib.suppress(TargetError):
                return read_diagnosis(directory, target.name)
    if target.kind == "module" and target.name == MODULE and script_place(target) is None:
        raise TargetError(
            "torchrun was given no script that is there",
            "e.g. ridgeline optimize torchrun --nproc-per-node 2 train.py",
        )
    diagnosis = run_and_diagnose(target, runs, limit_s)
    home.mkdir(parents=True, exist_ok=True)
    noted.write_text(diagnosis.directory.path.name)
    return diagnosis


def run_and_diagnose(
    target: Target, runs: Path, limit_s: float, *, compiled: Path | None = None
) -> Diagnosis:
    """Run a program and return its diagnosis. `compiled` is a folder that has what it would
    compile."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} if compiled is not None else {}
    return read_diagnosis(
        _run(target, runs, limit_s, variables), target.name, "see `ridgeline run`"
    )


def read_diagnosis(directory: RunDirectory, name: str, hint: str = "") -> Diagnosis:
    """Return what the watcher of a run has concluded. Raise TargetError if no step was timed."""
    summary, case = stored_case(directory) or concluded_case(directory)
    if case is None or not summary.step.median_ms:
        raise TargetError(f"{name}: {verdict_reason(summary.verdict)}", hint)
    ground = ground_of(case, summary.findings.findings)
    return Diagnosis(directory=directory, summary=summary, ground=ground)


def _run(target: Target, runs: Path, limit_s: float, variables: Mapping[str, str]) -> RunDirectory:
    """Run the program in a directory made here, so that a run which another command makes in the
    same folder meanwhile is never taken for this one."""
    directory = RunDirectory.make(runs, run_name(target.kind, _run_title(target), datetime.now()))
    try:
        return _run_into(directory, target, limit_s, variables)
    finally:
        with contextlib.suppress(OSError):
            directory.path.rmdir()  # it is empty only if nothing could be recorded


def _run_into(
    directory: RunDirectory, target: Target, limit_s: float, variables: Mapping[str, str]
) -> RunDirectory:
    path = str(directory.path.absolute())
    options = [
        "-q", "--run-dir", path, "--stop-after", str(DIAGNOSED_STEPS), "--at-once",
        "--stop-after-s", f"{DIAGNOSIS_SHARE * limit_s:.1f}",
    ]  # fmt: skip
    attempts = Attempts(directory)
    with no_leftovers(IN_A_TRIAL, path):
        ended = run_to_end(
            [sys.executable, *recorded(target, options)],
            os.environ | variables | {IN_A_TRIAL: path},
            limit_s,
            attempts.end_if_hanging,
        )
    name = "the code" if target.kind == "code" else target.name
    if ended.code is None:
        hint = "give it fewer data or a larger --budget"
        if not any(run.steps_file().exists() for run in attempts.begun()):
            hint = f"no step was seen; steps in processes that it starts itself are not: {hint}"
        raise TargetError(
            f"the budget ended before {name} had taken enough steps for a diagnosis: it ran for "
            f"{limit_s:.0f} s",
            hint,
        )
    begun = attempts.begun()
    if not begun or (ended.code and not attempts.killed):
        why = f"ended with exit code {ended.code}" if ended.code else "could not be recorded"
        why = f"was killed by {ended.signal}" if ended.signal else why
        why += ", and has no standard input here" * (NO_INPUT in ended.last_lines)
        output = ["it said:", *ended.last_lines] if ended.last_lines else []
        raise TargetError(f"{name} {why}", "\n  ".join(output))
    return begun[-1]


def _run_title(target: Target) -> str:
    """Return what the run is named after: the script behind a launcher, else the target itself."""
    place = script_place(target)
    return target.name if place is None else Path(target.arguments[place]).stem


class Attempts:
    """The runs that a program makes: its own, and one for each further attempt of a launcher."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._stopping_since = 0.0
        self.killed = False
        """Whether the program was killed because it went on after it was told to stop."""

    def begun(self) -> list[RunDirectory]:
        path = self._directory.path
        attempts = itertools.count(1)
        again = (RunDirectory(path.with_name(restarted_name(path.name, n))) for n in attempts)
        begun = itertools.takewhile(lambda run: run.run_file.exists(), again)
        return [self._directory, *begun] if self._directory.run_file.exists() else []

    def end_if_hanging(self, pid: int) -> None:
        """Kill a program that goes on after it was told to stop, because it waits for a thread of
        its own, or took the exception that was to end it for another."""
        if self.killed or not any(run.stopping_file.exists() for run in self.begun()):
            return
        self._stopping_since = self._stopping_since or time.monotonic()
        if time.monotonic() - self._stopping_since < MAX_EXIT_S:
            return
        if any(capture.ended != "running" for run in self.begun() for capture in run.captures()):
            return  # it waits until its record is written
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


MIN_WIDE_SIDE, TILE = 1024, 64
"""A side of a matrix longer than the first number is odd if it is no multiple of the second."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "linear", "matmul", "attention")
_HOLD_PRODUCTS = ("transformer", "lstm", "gru", "rnn", "einsum", "mv", "addmv", "dot")
"""Words in the names of operators that multiply matrices inside."""
PRODUCT_KINDS = frozenset({"matmul", "convolution", "attention"})
_CONVOLUTIONS = ("convolution", "conv2d", "conv1d", "conv3d")


def ground_of(case: Case, findings: Sequence[Finding] = ()) -> Ground:
    """Return what a fix may need to know about the program and its machine."""
    capture = case.capture
    if capture is None:
        return Ground()
    cuda = capture.device.kind == "cuda"
    products = [site for site in case.sites.ops if _named(site, _PRODUCTS)]
    multiplying = [site for site in case.sites.ops if _multiplies(site)]
    here = case.processors > 0  # the layout of the machine was read where the program ran
    device = capture.device
    address = nvml.Address(uuid=device.uuid, pci=device.pci, name=device.name)
    gpu = processor.gpu_address(address) if here and cuda else ""
    # With the cores that this process, and so a trial, may use.
    allowed_cores = getattr(os, "sched_getaffinity", None)
    nodes = processor.nodes(allowed_cores(0)) if here and allowed_cores is not None else ()
    budget = case.shares.undisturbed if case.shares is not None else {}
    shares = {str(kind): share for kind, share in budget.items()}
    return Ground(
        device=capture.device.kind,
        capability=_capability(capture.device.architecture),
        cores=capture.flags.allowed_cores or (case.run.environment.cores if case.run else 1),
        torch=_version(capture.flags.torch),
        emulated=case.emulated,
        compiler=find_spec("triton") is not None
        if cuda
        else any(map(shutil.which, ("g++", "clang++", "c++"))),
        ranks=case.ranks,
        # A program that marks the ends of its steps may train or not.
        trains=capture.stepping in ("optimizer", "backward") or bool(capture.optimizers),
        loaders=capture.loaders,
        optimizers=capture.optimizers,
        modules=tuple(one for one in capture.modules if not one.loss),
        flags=capture.flags,
        autocast=capture.flags.autocast,
        compiled=bool(capture.compilations),
        convolutions=any(_named(site, _CONVOLUTIONS) for site in case.sites.ops),
        products_share=_most_share(case, multiplying),
        products_least_share=case.sites_share(multiplying) if case.sites.ops else None,
        loss_share=case.sites_share([site for site in case.sites.ops if _wide_loss(site)]),
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
        nodes=nodes,
        gpu_address=gpu,
        gpu_node=processor.node_of(gpu),
    )


def _named(site: OpSite, words: tuple[str, ...]) -> bool:
    name = site.op.removeprefix("aten::").lstrip("_")
    return any(name == word or word in name.split("_") or name.startswith(word) for word in words)


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
    """Return whether a matrix has a long side that is no multiple of a tile. Only matrices count,
    because batches and images have other sides."""
    matrices = [sides for sides in site.dims if len(sides) == 2]
    known = [sides for sides in matrices if all(isinstance(side, int) for side in sides)]
    return any(side > MIN_WIDE_SIDE and side % TILE for sides in known for side in sides)


def _copies(case: Case) -> float | None:
    if not case.sites.ops:
        return None
    return sum(one.copies for one in case.sites.copies if one.direction == "to device")


def _wide_loss(site: OpSite) -> bool:
    """Return whether a site is part of a loss over many classes, as is filling its gradient with
    zeros."""
    own = any(word in site.op or site.inside(word) for word in ("log_softmax", "nll_loss"))
    wide = (side for sides in site.dims for side in sides if isinstance(side, int))
    return own and max(wide, default=0) >= MIN_CLASSES


def _shapes_change(sites: list[OpSite]) -> bool:
    """Return whether sizes differ between steps: then some product is not called a whole number of
    times per step."""
    return any(abs(site.calls - round(site.calls)) > 1e-6 for site in sites if site.dims)


def _capability(architecture: str) -> tuple[int, int]:
    """Return the compute capability: (9, 0) for sm_90."""
    digits = "".join(one for one in architecture if one.isdigit())
    return (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 else (0, 0)


def _version(text: str) -> tuple[int, int]:
    parts = text.split(".")
    if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit():
        return int(parts[0]), int(parts[1])
    return 0, 0
