"""Says how a training step fits a budget of memory: plans, the code of the first, the blocks."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.records.memory_plan import BlockMemory, MemoryPlan, PlannedFit, Unverified
from ridgeline.report.document import (
    Block,
    Cell,
    Code,
    Column,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    row,
)

MAX_BLOCK_ROWS = 6
_UNVERIFIED = {
    Unverified.NO_ROOM: "no room here",
    Unverified.NO_DATA: "no weights here",
    Unverified.NOT_ASKED: "not run",
    Unverified.NOT_HERE: "cannot run here",
    Unverified.LATER: "not run",
    Unverified.FAILED: "failed",
}


def planned_section(planned: PlannedFit) -> Section:
    blocks: list[Block] = [Paragraph((Span(_answer(planned), bold=True),))]
    if planned.plans:
        blocks.append(_plans(planned))
        blocks += [Paragraph(text, "quiet") for text in _doubts(planned)]
        blocks.append(Code(plan_code(planned.plans[0]), "python", "the first plan, in code"))
    if planned.blocks:
        blocks.append(_blocks(planned))
    return Section(title="", blocks=tuple(blocks), spaced=True)


def _answer(planned: PlannedFit) -> str:
    budget, peak = units.bytes_(planned.budget_bytes), units.bytes_(planned.peak_bytes)
    batch = f"a training step of batch {planned.batch:,}"
    if planned.fits:
        return f"{batch} fits {budget} as given: its predicted peak is {peak}"
    needs = f"{batch} needs {peak}, and {budget} are there"
    if not planned.plans:
        smallest = units.bytes_(planned.smallest_peak_bytes)
        return f"{needs}. No plan fits: the smallest peak of all that were tried is {smallest}"
    first = planned.plans[0]
    time = units.significant(first.predicted_slowdown)
    return f"{needs}. It fits with {plan_text(first)}, in {time} × the time"


def plan_text(plan: MemoryPlan) -> str:
    parts = []
    if plan.checkpointed:
        parts.append(f"{units.plural(len(plan.checkpointed), 'block')} checkpointed")
    if plan.micro_batches > 1:
        parts.append(f"{plan.micro_batches} micro-batches of {plan.micro_batch}")
    if plan.fused:
        parts.append(f"fused {plan.optimizer}")
    if plan.optimizer.endswith("8bit"):
        parts.append(plan.optimizer)
    if plan.offloaded:
        parts.append("optimizer state on the host")
    if plan.autocast:
        parts.append(f"{plan.autocast} autocast")
    return units.word_list(parts) or "nothing changed"


def _plans(planned: PlannedFit) -> Table:
    rows = []
    for number, plan in enumerate(planned.plans, start=1):
        measured, time = "—", "—"
        if plan.measured_peak_bytes is not None:
            off = plan.measured_peak_bytes / plan.predicted_peak_bytes - 1
            measured = f"{units.bytes_(plan.measured_peak_bytes)} ({100 * off:+.1f} %)"
        elif plan.unverified is not None:
            measured = _UNVERIFIED[plan.unverified]
        if plan.measured_slowdown is not None:
            time = f"{units.significant(plan.measured_slowdown)} ×"
        rows.append(
            row(
                f"{number}  {plan_text(plan)}",
                plan.changes,
                units.bytes_(plan.predicted_peak_bytes),
                measured,
                f"{units.significant(plan.predicted_slowdown)} ×",
                time,
            )
        )
    columns = (
        Column("plan", "words"), Column("changes", "words"), Column("predicted peak"),
        Column("measured"), Column("predicted time"), Column("measured"),
    )  # fmt: skip
    return Table(columns=columns, rows=tuple(rows), short=len(rows))


def _doubts(planned: PlannedFit) -> Iterator[str]:
    if planned.times_source == "measured":
        yield (
            f"predicted times: from a step and the forward of each block at batch "
            f"{planned.timed_batch}, timed here"
        )
    else:
        yield "predicted times: from the shortest time that each operator can take on this device"
    if planned.has_statistics and any(p.micro_batches > 1 for p in planned.plans):
        yield "batch norm sees one micro-batch at a time: its statistics change with micro-batches"
    if planned.has_statistics and any(p.checkpointed for p in planned.plans):
        yield (
            "batch norm in a checkpointed block updates its running statistics twice, unless its "
            "momentum is 0 while it is computed again, as in the measurement"
        )
    if any(p.autocast and p.measured_slowdown is None for p in planned.plans):
        yield "what autocast gains in time is not predicted"
    if planned.has_loss:
        yield (
            "the model computes a cross-entropy: computing it in chunks would save most of its "
            "logits too, which no plan here counts"
        )
    if planned.lacks_solver:
        yield (
            "blocks share tensors, and scipy is not installed: each counts them in full, so a "
            "faster plan may exist. Try: pip install 'ridgeline[planner]'"
        )
    unrun = {p.unverified for p in planned.plans}
    if Unverified.NO_ROOM in unrun:
        yield "no room here: this machine has too little memory free to run that plan"


def plan_code(plan: MemoryPlan) -> str:
    """Return what to write in a training loop that calls its model `model`."""
    lines: list[str] = []
    if plan.checkpointed:
        lines += ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
        lines += ["", f"for path in {_paths(plan.checkpointed)}:"]
        lines += [
            "    block = model.get_submodule(path)",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
            "",
        ]
    indent = "    " if plan.micro_batches > 1 else ""
    if plan.micro_batches > 1:
        lines.append(
            f"for x, y in zip(inputs.split({plan.micro_batch}), targets.split({plan.micro_batch})):"
        )
    names = ("x", "y") if plan.micro_batches > 1 else ("inputs", "targets")
    share = " * len(x) / len(inputs)" if plan.micro_batches > 1 else ""
    loss = f"loss = loss_of(model({names[0]}), {names[1]}){share}"
    if plan.autocast:
        lines.append(
            f"{indent}with torch.autocast(inputs.device.type, dtype=torch.{plan.autocast}):"
        )
        lines.append(f"{indent}    {loss}")
    elif plan.micro_batches > 1:
        lines.append(f"{indent}{loss}")
    if plan.micro_batches > 1 or plan.autocast:
        lines.append(f"{indent}loss.backward()")
    if plan.fused:
        lines.append(f"optimizer = torch.optim.{_class(plan.optimizer)}(parameters, …, fused=True)")
    elif plan.optimizer.endswith("8bit"):
        lines.append(f"optimizer = bitsandbytes.optim.{_class(plan.optimizer)}(parameters, …)")
    return "\n".join(lines).strip("\n")


_CLASSES = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adam8bit": "Adam8bit",
    "adamw8bit": "AdamW8bit", "momentum8bit": "SGD8bit",
}  # fmt: skip


def _class(optimizer: str) -> str:
    return _CLASSES.get(optimizer, optimizer)


def _paths(paths: tuple[str, ...]) -> str:
    """Return the paths as Python writes them; a run of numbers as a comprehension."""
    prefixes = {path.rpartition(".")[0] for path in paths}
    numbers = [path.rpartition(".")[2] for path in paths]
    if len(prefixes) == 1 and len(paths) > 2 and all(n.isdecimal() for n in numbers):
        prefix = prefixes.pop()
        listed = [int(n) for n in numbers]
        dot = f"{prefix}." if prefix else ""
        span = range(listed[0], listed[-1] + 1)
        which = f"range({span.start}, {span.stop})" if listed == list(span) else f"{tuple(listed)}"
        return f'(f"{dot}{{i}}" for i in {which})'
    quoted = ", ".join(f'"{path}"' for path in paths)
    return f"({quoted},)" if len(paths) == 1 else f"({quoted})"


def _blocks(planned: PlannedFit) -> Table:
    total = sum(block.kept_bytes for block in planned.blocks) or 1
    ordered = sorted(planned.blocks, key=lambda b: -b.kept_bytes)
    columns = (
        Column("block", "name"), Column("type", "words"), Column("kept for backward"),
        Column("share"), Column("checkpointing saves"), Column("and takes"), Column("again"),
    )  # fmt: skip
    rows = tuple(_block_row(block, total) for block in ordered)
    return Table(columns=columns, rows=rows, short=MAX_BLOCK_ROWS)


def _block_row(block: BlockMemory, total: int) -> Row:
    return row(
        block.path,
        block.type,
        Cell(units.bytes_(block.kept_bytes), block.kept_bytes),
        units.percent(block.kept_bytes / total),
        units.bytes_(block.saved_bytes) if block.saved_bytes > 0 else "nothing",
        units.flop(block.recompute_flops),
        f"{units.percent(block.recompute_share)} of the step",
    )
