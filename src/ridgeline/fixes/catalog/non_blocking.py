"""Copies to the GPU that the program does not wait for."""

import ast
import functools
import linecache
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import Fix, Source, speedup_without
from ridgeline.fixes.program import Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit, Keyword, Replace
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.file import parsed

WHY = "the program goes on while the GPU fetches the batch"
MAX_LOCATED_COPIES = 256
"""Copies whose lines are looked up. Later ones cost one test more, and no walk up the stack."""

FIX = Fix(
    id="non-blocking",
    group="loader",
    title="copies to the GPU without waiting",
    alters="nothing",
    answers=("blocking-copy", "unpinned-memory"),
    together=("pin-memory",),
    why="A copy from pinned memory is queued on the stream that will use it, and the program goes "
    "on to queue its kernels. What comes after it on that stream waits for it by itself.",
    wrong_when="The program writes the pinned buffer again before the copy has been done, or uses "
    "the copy on another stream without an event. Copies to the CPU are never changed: their "
    "reader would not wait.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.copies == 0:
        return because(Skip.NO_COPIES)
    pinned = all(one.pin_memory for one in ground.loaders)
    if pinned and not set(FIX.answers) & set(ground.findings):
        return because(Skip.NO_BLOCKING_COPY)
    return None


def bound(ground: Ground) -> float | None:
    """Return the bound if the device's idle time goes; the copies themselves stay on its stream.
    Copies from pageable memory do not change. Where memory is not pinned, the bound is a little
    less than that of pin-memory, so that pin-memory is tried first."""
    most = speedup_without(1 - ground.busy if ground.busy else None)
    if most is None or not ground.loaders or any(one.pin_memory for one in ground.loaders):
        return most
    return max(most - 0.002, 1.0)


def apply(program: Program, options: Mapping[str, str]) -> None:
    if program.device != "cuda":
        program.found_nothing(FIX.id, because(Skip.NO_GPU))
        return
    program.found_nothing(FIX.id, because(Skip.NO_PINNED_COPY))
    seen: set[str] = set()
    copies = 0

    def note(call: str) -> None:
        nonlocal copies
        copies += 1
        place = user_line() if copies <= MAX_LOCATED_COPIES else ""
        if copies == 1 or (place and place not in seen):
            seen.add(place)
            done = because(Done.OPTION, call=call, option="non_blocking", value=True)
            program.did(FIX.id, done, place)

    tensor = program.torch.Tensor
    to, cuda = tensor.to, tensor.cuda

    @functools.wraps(to)
    def freed_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "non_blocking" not in kwargs and to_gpu(program.torch, self, args, kwargs):
            kwargs["non_blocking"] = True
            note("to")
        return to(self, *args, **kwargs)

    @functools.wraps(cuda)
    def freed_cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "non_blocking" not in kwargs and len(args) < 2 and is_sendable(self):
            kwargs["non_blocking"] = True
            note("cuda")
        return cuda(self, *args, **kwargs)

    tensor.to, tensor.cuda = freed_to, freed_cuda


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return tuple(edit for file, line in applied.lines for edit in _edits(file, line))


def _edits(file: str, line: int) -> list[Edit]:
    """Return a keyword if the line has one such call; else edits of each copy by its text, as in
    `x, y = x.to(device), y.to(device)`."""
    calls = _calls("".join(linecache.getlines(file)), line)
    copies = [call for call in calls if not _is_left(call)]
    if len(calls) < 2 or not copies:
        name = calls[0].func.attr if calls and isinstance(calls[0].func, ast.Attribute) else "to"
        return [
            Keyword(file=file, line=line, call=name, name="non_blocking", value="True", why=WHY)
        ]
    edits: list[Edit] = []
    for before in dict.fromkeys(ast.unparse(call) for call in copies):
        comma = "" if before.endswith("()") else ", "
        after = f"{before[:-1]}{comma}non_blocking=True)"
        edits.append(Replace(file=file, line=line, before=before, after=after, why=WHY))
    return edits


def _calls(source: str, line: int) -> list[ast.Call]:
    """Return the calls `.to(…)` and `.cuda(…)` on that line."""
    file = parsed(source)
    return [
        call
        for call in (file.calls_on_line(line) if file is not None else ())
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
    ]


def _is_left(call: ast.Call) -> bool:
    """Return whether the call copies to the CPU or to a type, or says itself whether it waits."""
    if any(one.arg in ("non_blocking", None) for one in call.keywords):
        return True
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return not first.value.startswith("cuda")
    return isinstance(first, ast.Attribute) and ast.unparse(first.value) == "torch"


def to_gpu(torch: Any, source: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether this `.to(…)` copies pinned memory to a GPU and does not say if it waits."""
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, torch.Tensor):
        gpu = target.is_cuda and len(args) < 2
    elif isinstance(target, torch.device):
        gpu = target.type == "cuda"
    elif isinstance(target, str):
        gpu = target.startswith("cuda")
    else:  # a number of a device; a type is no target
        gpu = type(target) is int
    return bool(gpu and len(args) < 3 and is_sendable(source))


def is_sendable(source: Any) -> bool:
    """Return whether the tensor is pinned and was never written in place: a buffer that is filled
    again and again has a version above 0, a loader's batch has not. Tensors made under
    inference_mode have no version."""
    if source.device.type != "cpu" or source.is_inference() or source._version > 0:
        return False
    return bool(source.is_pinned())
