"""Samples that cost nothing to make: the time is in taking and stacking them one by one."""

import ast

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules._batch_lines import batch_lines
from ridgeline.records.run import LoaderSeen
from ridgeline.source.reading.loader_call import LoaderCall

DOMINANT = 0.4
"""Of the step: below it single samples are the ordinary price of a DataLoader, which programs
that are well tuned pay too (10 to 32 % seen with small models on a CPU)."""
SAMPLE_MS = 0.05
"""Taking a sample and stacking it: 5 to 33 µs seen for rows of a tensor or of a mapped file."""
OWN_MS = 0.03
"""The part of it in the program's own lines: a `__getitem__` that indexes an array and makes a
tensor of it takes 11 µs."""
_TENSORS = "TensorDataset"


def is_plain(case: Case, loader: LoaderSeen | None, sample_ms: float | None) -> bool:
    """Whether no line of the program's own takes the time of a batch."""
    if loader is None:
        return False
    own = sum(line.share for line in batch_lines(case))
    if loader.dataset == _TENSORS and not own:
        return True
    known = bool(own) or case.input.kind == "single"  # else nothing saw which lines are at work
    if sample_ms is None or sample_ms > SAMPLE_MS or not known:
        return False
    # A GPU that waits for own lines, however short, is helped by workers.
    return own * sample_ms <= OWN_MS and not (own and case.on_gpu)


def by_whole_batches(call: LoaderCall | None, loader: LoaderSeen | None) -> str:
    """The loader, asking its dataset for a list of samples: tensors and arrays take that."""
    try:
        made = ast.parse(call.text).body[0] if call is not None else None
    except (SyntaxError, IndexError):
        made = None
    calls = [n for n in ast.walk(made) if isinstance(n, ast.Call)] if made is not None else []
    first = next((n for n in calls if "DataLoader" in ast.unparse(n.func)), None)
    data = ast.unparse(first.args[0]) if first is not None and first.args else "dataset"
    options = {k.arg: ast.unparse(k.value) for k in first.keywords} if first is not None else {}
    size = options.get("batch_size") or str((loader and loader.batch_size) or "batch_size")
    random = options.get("shuffle", "False") != "False"
    order = f"{'Random' if random else 'Sequential'}Sampler({data})"
    return (
        "# a list of indices at once, in the place of one sample after the other\n"
        f"batches = BatchSampler({order}, {size}, drop_last=False)\n"
        f"loader = DataLoader({data}, sampler=batches, batch_size=None)"
    )


def whole_from(dataset: str) -> str:
    """The same of a dataset that hands out its samples itself, and takes no sampler."""
    return (
        f"# in {dataset}.__iter__: yield whole batches, slices of a tensor\n"
        f"loader = DataLoader({dataset}(…), batch_size=None)"
    )
