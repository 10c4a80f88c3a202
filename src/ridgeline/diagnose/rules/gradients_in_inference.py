"""A program that never trains, and records every operator for a backward that never comes."""

import ast
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import SATURATED, Case
from ridgeline.diagnose.memory_room import peak_bytes
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._memory_lines import user_sources
from ridgeline.diagnose.source.graph_names import GraphNames
from ridgeline.diagnose.source.sources import Source
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.records.trace_memory import TraceMemory

NODE_US = 5.0
"""Host time of an autograd node, made and freed again: 3.4 to 4.5 µs measured on linear layers and
layer norms of 16 features, against the same under inference_mode."""
LEAST_SHARE = 0.01
LEAST_MEMORY = 0.05
LIVES = 2
"""The graph of a call lives until its result is replaced: while the next one is built."""

RULE = Rule(
    id="gradients-in-inference",
    family="memory",
    title="Inference records gradients",
    budget="overhead",
    needs=("trace",),
    looks_at=(
        "Operators of the traced steps: called with gradients on, each carries a number that goes "
        "up when an autograd node is made. No backward runs, and in a run no optimizer was seen. "
        "The memory: what stays allocated from the beginning of a model's call to its end."
    ),
    threshold=(
        "Nodes are made, none is run, and they cost 1 % of the step (5 µs of host time each, where "
        "the host is what the step waits for) or their activations 5 % of the peak."
    ),
    why=(
        "With gradients on, each operator makes a node that remembers its inputs for a backward. "
        "Without a backward that is work for nothing, and every activation stays in memory until "
        "the result is dropped, instead of being reused by the next layer."
    ),
    fix=(
        "Say that nothing is trained:\n\n```python\n"
        "with torch.inference_mode():   # or @torch.inference_mode() above the function\n"
        "    output = model(batch)\n```\n\n"
        "`model.eval()` does not do that: it changes dropout and batch norm only. Where results "
        "are used in training later, take `torch.no_grad()`."
    ),
    wrong_when=(
        "Gradients are wanted after all: with respect to inputs (saliency, adversarial examples) "
        "by `torch.autograd.grad` outside the traced steps."
    ),
)


def look(case: Case) -> Iterator[Finding]:
    traced = case.traced_memory
    if traced is None or traced.backwards or traced.nodes < 1 or _trains(case):
        return
    share, memory = _share(case, traced), _memory(case, traced)
    if share < LEAST_SHARE and memory < LEAST_MEMORY:
        return
    place, written = _place(case)
    yield found(
        RULE,
        claim=_claim(traced, memory),
        share=share,
        memory=memory,
        evidence=_evidence(case, traced, memory),
        place=place,
        change=_change(written),
        confidence=_confidence(case),
        doubt="" if case.capture is not None else "the trace may hold the forward of a training",
    )


def _trains(case: Case) -> bool:
    capture = case.capture
    if capture is not None and (
        capture.optimizers or capture.stepping in ("optimizer", "backward")
    ):
        return True
    return any(step.backwards or step.optimizer_steps for step in case.steps)


def _share(case: Case, traced: TraceMemory) -> float:
    """Of the host's time; on a GPU only as far as the GPU waits for the host."""
    if not case.step_ms:
        return 0.0
    share = traced.nodes * NODE_US / 1e3 / case.step_ms
    if not case.on_gpu:
        return min(share, 1.0)
    busy = case.busy or 0.0
    return 0.0 if busy >= SATURATED else min(share, 1 - busy)


def _memory(case: Case, traced: TraceMemory) -> float:
    peak = peak_bytes(case) if case.on_gpu else case.memory.host_peak_bytes or traced.peak_bytes
    return min(LIVES * traced.forward_bytes / peak, 1.0) if peak else 0.0


def _claim(traced: TraceMemory, memory: float) -> str:
    nodes = units.significant(traced.nodes)
    said = f"nothing is trained, yet each step makes {nodes} autograd nodes"
    if memory < LEAST_MEMORY:
        return said
    return f"{said} and keeps {units.bytes_(traced.forward_bytes)} of activations"


def _evidence(case: Case, traced: TraceMemory, memory: float) -> list[Evidence]:
    rows = [
        Evidence(what="autograd nodes", text=f"{units.significant(traced.nodes)} a step, 0 run",
                 value=traced.nodes),
        Evidence(
            what="kept when the model's call ends",
            text=f"{units.bytes_(traced.forward_bytes)}, with the call before it "
            f"{units.percent(memory)} of the peak",
            value=traced.forward_bytes,
        ),
    ]  # fmt: skip
    if case.capture is not None:
        calls = sum(module.calls for module in case.capture.modules if not module.loss)
        rows.append(Evidence(what="the run", text=f"{calls} calls of models, no backward"))
    return rows


def _confidence(case: Case) -> Confidence:
    return "high" if case.capture is not None else "medium"


def _place(case: Case) -> tuple[Place | None, str]:
    """Where the model is called, and the line as written."""
    modules = case.capture.modules if case.capture is not None else ()
    for module in sorted(modules, key=lambda m: -m.parameter_bytes):
        file, _, line = module.place.rpartition(":")
        if file and line.isdigit():
            source = case.sources.get(file)
            function = _function(source, int(line)) if source is not None else ""
            written = source.line(int(line)) if source is not None else ""
            return Place(file=file, line=int(line), function=function), written
    for source in user_sources(case):
        names = GraphNames(source)
        for scope in (source.tree, *_functions(source)):
            calls = [c for c in names.model_calls(scope) if not names.quiet(c)]
            looped = sorted(calls, key=lambda c: (-source.loops(c), c.lineno))
            if looped and getattr(scope, "name", "") != "forward":
                line_ = looped[0].lineno
                name = getattr(scope, "name", "")
                return Place(file=source.file, line=line_, function=name), source.line(line_)
    site = next((s for s in case.sites.ops if s.phase == "forward" and s.place), None)
    return (site.place if site is not None else None), ""


def _functions(source: Source) -> Iterator[ast.AST]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _function(source: Source, line: int) -> str:
    return str(getattr(source.scope(line), "name", ""))


def _change(written: str) -> str:
    text = written.partition("  #")[0] or "output = model(batch)"
    if text.endswith(":"):  # a line that opens a block cannot be moved alone
        return "@torch.inference_mode()  # above the function that calls the model"
    return f"with torch.inference_mode():\n    {text}"
