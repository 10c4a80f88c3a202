"""The host waits for the device in every step: for a number, a text, a branch, a copy, a size."""

import ast
from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located
from ridgeline.diagnosis.rules._waits import (
    LARGE_BYTES,
    MIN_SHARE,
    Waiting,
    often,
    per_step,
    quoted,
    wait_findings,
    waiting,
)
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.on_device import (
    tensor_read,
    without_branch,
    without_read_branch,
    without_reading,
)
from ridgeline.source.waiting import (
    Line,
    branches,
    calls,
    makes_calls,
    masks,
    now_and_then,
    printed,
    read_numbers,
)

ITEM_SYNC = Rule(id="item-sync", family="synchronisation", budget="overhead", needs=("trace",))
_ITEM_GENERIC = """\
total = torch.zeros((), device=device)  # once, before the loop
total += loss.detach()  # stays on the device
if step % 100 == 99:
    print(total.item() / 100)  # one wait in 100 steps
    total.zero_()"""
_SCALER = """\
optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # yours, with fused=True: the
# scaler then leaves it to the GPU to skip a step (Adam, AdamW, SGD, Adagrad).
# bfloat16 needs no scaler at all."""


def item_sync(case: Case) -> Iterator[Finding]:
    """A number is read from the device each step: `.item()`, float(), int()."""
    if case.on_gpu:
        yield from wait_findings(
            ITEM_SYNC, case, "item", _item_lines, _item_claim, _item_change, _library_change
        )
    else:
        yield from _would_wait(case)


def _item_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    asked = "Reading a number" if wait.library or not wait.via else "`.item()`"
    return f"{quoted(lines, asked)} makes the host wait for the GPU {often(wait.times)}"


def _library_change(wait: Waiting) -> str:
    return _SCALER if any("grad_scaler.py:" in name for name in wait.via) else ""


def _would_wait(case: Case) -> Iterator[Finding]:
    """Yield a finding for each line of a program on a CPU that would make the host wait in every
    step if the program ran on a GPU."""
    steps = max(case.sites.steps, 1)
    for call in case.capture.calls if case.capture is not None else ():
        if call.name != "item" or call.times < steps:
            continue
        place = located(case, call.file, call.line)
        numbers = read_numbers(case.sources, place)
        lines = [line for line in numbers if line.number == call.line]
        asked = f"`{lines[0].expression}`" if lines else "`.item()`"
        each = call.times / steps
        yield make_finding(
            ITEM_SYNC,
            claim=f"{asked} reads a number {often(each)}: on a GPU the host would wait for it",
            share=0.0,
            evidence=[measured("calls a step", per_step(each), call.times)],
            place=place,
            change=_item_change(case, case.sources.get(call.file), None, lines),
            confidence="unmeasured",
            doubt="on a CPU the host does not wait",
        )


def _item_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method and wait.method not in ("item", "round"):
        return calls(case.sources, wait.place, {wait.method})
    return read_numbers(case.sources, wait.place)


def _item_change(
    case: Case, source: SourceFile | None, wait: Waiting | None, lines: Sequence[Line]
) -> str:
    if not lines or source is None or not (kept := tensor_read(source, lines[0])):
        return _ITEM_GENERIC
    generic = (
        f"value = {kept}  # a tensor: use it instead of {lines[0].expression}\n"
        "number = value.item()  # only where Python needs a number: now and then, or after the loop"
    )
    return without_read_branch(source, lines[0]) or without_reading(source, lines[0]) or generic


PRINT_TENSOR = Rule(
    id="print-tensor", family="synchronisation", budget="overhead", needs=("trace", "gpu", "stacks")
)


def print_tensor(case: Case) -> Iterator[Finding]:
    """A tensor on the device is printed, logged or put into a text each step."""
    yield from wait_findings(PRINT_TENSOR, case, "print", _print_lines, _print_claim, _print_change)


def _print_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    waits = per_step(round(wait.waits, 1))
    return (
        f"A tensor on the GPU is made into text {often(wait.times)}: {waits} waits for the GPU a "
        "step"
    )


def _print_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    """Return the lines by the outermost function seen: print, info, format. f-strings have none."""
    for name in (name.split(":")[-1] for name in wait.via):
        if name in ("__repr__", "__format__", "__str__"):
            break
        found = printed(case.sources, wait.place, name) or calls(case.sources, wait.place, {name})
        if found:
            return found
    return printed(case.sources, wait.place)


def _print_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    node = lines[0].node if lines else None
    statement = source.statement_of(node) if source is not None and node is not None else None
    note = "# of tensors x.tolist(), or x.item(): one copy, one wait"
    if source is None or not isinstance(statement, ast.Expr | ast.Assign):
        return f"{note}\n{now_and_then(source, node, 'print(values.tolist())')}"
    if isinstance(statement, ast.Assign):
        note += "; with all that uses the text"
    return f"{note}\n{now_and_then(source, statement, source.written(statement))}"


EXPLICIT_SYNCHRONIZE = Rule(
    id="explicit-synchronize", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
_READ = """\
torch.cuda.synchronize()  # once, after the loop
milliseconds = sum(began.elapsed_time(ended) for began, ended in marks)"""
_EVENTS = f"""\
marks = []  # once, before the loop
began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
began.record()
...  # what is to be timed
ended.record()
marks.append((began, ended))
{_READ}"""
_LATER = f"""\
marks = []  # once, before the loop
marks.append((began, ended))  # the step's two events: their time is read later
{_READ}"""


def explicit_synchronize(case: Case) -> Iterator[Finding]:
    """torch.cuda.synchronize(), or an event's or a stream's, left in the loop."""
    yield from wait_findings(
        EXPLICIT_SYNCHRONIZE,
        case,
        "explicit",
        _synchronize_lines,
        _synchronize_claim,
        _synchronize_change,
    )


def _synchronize_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    return calls(case.sources, wait.place, {"synchronize"})


def _synchronize_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = f"`{lines[0].expression}`" if lines else "A synchronisation asked for"
    return f"{what} makes the host wait for the GPU {often(wait.times)}"


def _synchronize_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    gone = f"# take out: {lines[0].text}" if lines else "# take the synchronisation out"
    called = wait.sites[0].call  # cudaStreamSynchronize, cudaEventSynchronize …
    if "Event" in called or makes_calls(case.sources, wait.place, {"elapsed_time"}):
        return f"{gone}\n{_LATER}"
    timed = makes_calls(
        case.sources, wait.place, {"perf_counter", "perf_counter_ns", "time", "monotonic"}
    )
    return f"{gone}\n{_EVENTS}" if timed or not lines else gone


HOST_COPY_SYNC = Rule(
    id="host-copy-sync", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
NAMES = frozenset({"cpu", "tolist", "numpy", "to", "copy_"})


def host_copy_sync(case: Case) -> Iterator[Finding]:
    """Small tensors are copied to the host each step: `.cpu()`, `.tolist()`, `.numpy()`."""
    yield from wait_findings(
        HOST_COPY_SYNC, case, "small copy", host_lines, _host_copy_claim, _host_copy_change
    )


def _host_copy_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    size = units.bytes_(bytes_each(wait))
    what = quoted(lines, method_name(wait))
    return f"{what} fetches {size} to the host and waits for it, {often(wait.times)}"


def host_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    """Return the calls that copy to the host. Of calls of `.to`, those that name the host count."""
    if wait.library:
        return ()
    names = {wait.method} if wait.method in NAMES else NAMES - {"to", "copy_"}
    lines = calls(case.sources, wait.place, names)
    if wait.method == "to":
        return tuple(line for line in lines if "cpu" in line.expression) or lines
    return lines


def method_name(wait: Waiting) -> str:
    return f"`.{wait.method}()`" if wait.method in NAMES else "A copy"


def bytes_each(wait: Waiting) -> float:
    return wait.bytes / max(wait.times, 1e-9)


def _host_copy_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    if not lines or source is None or not (kept := tensor_read(source, lines[0])):
        return (
            "history = []  # once, before the loop\n"
            "history.append(values.detach().clone())  # stays on the device\n"
            "history = torch.stack(history).cpu()  # once, after the loop"
        )
    return without_reading(source, lines[0]) or (
        f"value = {kept}  # stays on the device, instead of {lines[0].expression}\n"
        "on_host = value.cpu()  # where the host reads it: now and then, or after the loop"
    )


TENSOR_BRANCH = Rule(
    id="tensor-branch", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
_JUDGING = frozenset({"equal", "allclose", "max", "min", "sorted", "any", "all", "is_nonzero"})


def tensor_branch(case: Case) -> Iterator[Finding]:
    """Python decides by a value on the device: `if`, `while`, `assert`, torch.equal, allclose."""
    yield from wait_findings(
        TENSOR_BRANCH, case, "branch", _branch_lines, _branch_claim, _branch_change
    )


def _branch_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = quoted(lines, "A condition on a tensor")
    return f"{what} is decided on the host: it waits for the GPU {often(wait.times)}"


def _branch_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    if wait.method in _JUDGING:
        return calls(case.sources, wait.place, {wait.method})
    return branches(case.sources, wait.place)


def _branch_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    rewritten = without_branch(source, lines[0]) if lines and source is not None else ""
    return rewritten or (
        "x = torch.where(norm > limit, x * (limit / norm), x)\n"
        "# instead of: if norm > limit: x = x * (limit / norm)"
    )


RESULTS_TO_HOST = Rule(
    id="results-to-host", family="transfer", budget="transfer", needs=("trace", "gpu")
)
_COPY = """\
values = {}  # or what is wanted of it alone: .argmax(1), .mean()
host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
host.copy_(values, non_blocking=True)
copied = torch.cuda.Event()
copied.record()
# a step later, before host is read: copied.synchronize()"""


def results_to_host(case: Case) -> Iterator[Finding]:
    """Outputs, or other large tensors, are copied to the host each step."""
    yield from wait_findings(
        RESULTS_TO_HOST, case, "large copy", host_lines, _results_claim, _results_change
    )
    yield from _unwaited_copies(case, {wait.place for wait in waiting(case, "large copy")})


def _results_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    size = units.bytes_(bytes_each(wait))
    what = quoted(lines, method_name(wait))
    return f"{what} fetches {size} to the host {often(wait.times)}, and the GPU waits"


def _unwaited_copies(case: Case, places: set[object]) -> Iterator[Finding]:
    """Yield a finding for copies that the host does not wait for but that no kernel runs beside.
    `places` have a finding already."""
    for site in case.sites.copies:
        large = site.bytes >= LARGE_BYTES * max(site.copies, 1e-9)
        share = case.device_share(min(site.exposed_ns, site.path_ns))
        blocking = any(w.place == site.place and w.direction == "to host" for w in case.sites.waits)
        if site.direction != "to host" or not large or blocking or site.place in places:
            continue
        if share < MIN_SHARE:
            continue
        exposed = f"{units.seconds(site.exposed_ns / 1e9)} a step"
        yield make_finding(
            RESULTS_TO_HOST,
            claim=f"{units.bytes_(site.bytes)} a step are copied to the host while no kernel "
            f"runs: {units.percent(share)} of the step",
            share=share,
            evidence=[
                measured("copied to the host", units.bytes_(site.bytes)),
                measured("no kernel ran meanwhile", exposed),
            ],
            place=site.place,
            change=_COPY.format("outputs.detach()"),
            confidence="medium" if site.place is not None else "low",
        )


def _results_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    """Return code that keeps the tensor on the device if only the last one is used. If all are, its
    memory would fill up, and the code copies them without a wait."""
    kept = tensor_read(source, lines[0]) if lines and source is not None else ""
    if not lines or source is None or not kept:
        return _COPY.format("outputs.detach()")
    stays = without_reading(source, lines[0])
    if ".append(" in stays or not stays:
        return _COPY.format(kept)
    return f"{stays}\n# where a part of it is all that is wanted, that alone: .argmax(1), .mean()"


DYNAMIC_SHAPE_SYNC = Rule(
    id="dynamic-shape-sync", family="synchronisation", budget="overhead", needs=("trace", "gpu")
)
_CALLS = {
    "aten::nonzero": frozenset({"nonzero", "where", "argwhere", "flatnonzero"}),
    "aten::masked_select": frozenset({"masked_select"}),
    "aten::_unique2": frozenset({"unique"}),
    "aten::unique_dim": frozenset({"unique"}),
    "aten::unique_consecutive": frozenset({"unique_consecutive"}),
    "aten::repeat_interleave": frozenset({"repeat_interleave"}),
    "aten::bincount": frozenset({"bincount"}),
    "aten::one_hot": frozenset({"one_hot"}),
}
_INDEXING = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_"})
_DYNAMIC_SHAPE_GENERIC = (
    "torch.where(mask, errors, 0).sum() / mask.sum()  # instead of errors[mask].mean()\n"
    "x = x.masked_fill(mask, 0.0)  # instead of x[mask] = 0.0"
)


def dynamic_shape_sync(case: Case) -> Iterator[Finding]:
    """The size of a result depends on values on the device: masks, nonzero, unique."""
    yield from wait_findings(
        DYNAMIC_SHAPE_SYNC,
        case,
        "dynamic",
        _dynamic_shape_lines,
        _dynamic_shape_claim,
        _dynamic_shape_change,
    )


def _dynamic_shape_claim(wait: Waiting, lines: Sequence[Line]) -> str:
    what = quoted(lines, _operator(wait))
    return f"{what} has a size only the GPU knows: the host waits {often(wait.times)}"


def _dynamic_shape_lines(case: Case, wait: Waiting) -> tuple[Line, ...]:
    if wait.library:
        return ()
    named = next((_CALLS[op] for op in wait.ops if op in _CALLS), frozenset[str]())
    if wait.method in named:
        return calls(case.sources, wait.place, {wait.method})
    if _INDEXING.intersection(wait.ops):
        return masks(case.sources, wait.place)
    if found := calls(case.sources, wait.place, named):
        return found
    return masks(case.sources, wait.place)


def _operator(wait: Waiting) -> str:
    if _INDEXING.intersection(wait.ops):
        return "Indexing with a mask"
    op = next((op for op in wait.ops if op in _CALLS), wait.ops[0] if wait.ops else "An operator")
    return f"`{op.removeprefix('aten::').lstrip('_')}`"


def _dynamic_shape_change(
    case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]
) -> str:
    line = lines[0] if lines else None
    if line is None or source is None:
        return _DYNAMIC_SHAPE_GENERIC
    if "repeat_interleave" in line.expression and line.expression.endswith(")"):
        return (
            "total = ...  # the sum of the repeats, a number known on the host\n"
            f"{line.expression[:-1]}, output_size=total)"
        )
    if "one_hot" in line.expression and line.expression.endswith(")"):
        return (
            "classes = ...  # how many there are, a number\n"
            f"{line.expression[:-1]}, num_classes=classes)"
        )
    node = line.node
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Tuple):
        return _weighed(source, node)
    return _DYNAMIC_SHAPE_GENERIC


def _weighed(source: SourceFile, node: ast.Subscript) -> str:
    """Return code that sets, or averages, x[mask] without choosing elements."""
    values, mask = source.written(node.value), source.written(node.slice)
    above = next(source.parents(node), None)
    if isinstance(above, ast.Assign) and node in above.targets:
        new = above.value
        if isinstance(new, ast.Constant):
            told = f"{values} = {values}.masked_fill({mask}, {source.written(new)})"
        else:
            fits = isinstance(new, ast.Subscript) and source.written(new.slice) == mask
            given = source.written(new.value) if fits else "new"  # type: ignore[attr-defined]
            note = "" if given != "new" else f"  # new: a value for each of {values}"
            told = f"{values} = torch.where({mask}, {given}, {values}){note}"
        return f"{told}\n# instead of: {source.written(above)}"
    summed = f"torch.where({mask}, {values}, 0).sum()"
    return (
        f"{summed} / ({mask}).sum()  # instead of {values}[{mask}].mean()\n"
        f"{summed}  # instead of {values}[{mask}].sum()"
    )
