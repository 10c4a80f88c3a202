"""The words about memory: what would need less of it, and what a snapshot does not hold.
`ridgeline.report.reasons` fills them in."""

from collections.abc import Callable
from typing import Any

from ridgeline.records.memory import AdviceCode, MemoryKind, MemoryNote

TEMPLATES: dict[str, str] = {
    AdviceCode.EXPANDABLE_SEGMENTS: (
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {stuck_bytes:bytes} are free, but "
        "lie between blocks in use"
    ),
    AdviceCode.CHECKPOINT: (
        "checkpoint the repeated blocks (torch.utils.checkpoint): what their lines allocated is "
        "live {repeats} times or more, {activations_bytes:bytes} in all"
    ),
    AdviceCode.FREE_GRADIENTS: (
        "release the gradients before the forward, optimizer.zero_grad(set_to_none=True): those of "
        "the step before are still there"
    ),
    AdviceCode.SMALLER_BATCH: (
        "halve the batch, and accumulate gradients over two: activations grow with it"
    ),
    AdviceCode.LOWER_PRECISION: "compute the forward in bfloat16 (torch.autocast)",
    AdviceCode.SMALLER_OPTIMIZER_STATE: (
        "keep the optimizer's state in 8 bits, or shard it over the ranks: it takes "
        "{state_bytes:bytes}"
    ),
    AdviceCode.CHUNKED_LOSS: (
        "compute the loss over chunks of the tokens: logits and what the loss makes of them take "
        "{logits_bytes:bytes}"
    ),
    AdviceCode.STOP_GROWTH: (
        "stop the growth{file:at_line_of}{line:colon_number}: {bytes_per_step:bytes} stay behind "
        "in each step"
    ),
    AdviceCode.NO_GRADIENTS: (
        "if no backward follows, run it under torch.inference_mode(): none was recorded, and "
        "activations are kept"
    ),
    AdviceCode.OTHER_PROCESSES: (
        "free what torch does not know of on the device, {bytes:bytes}: other programs, contexts, "
        "buffers of libraries"
    ),
    MemoryNote.NO_STACKS: (
        "no stacks were recorded, so that lines, modules and kinds are unknown: record with "
        'torch.cuda.memory._record_memory_history(stacks="python")'
    ),
    MemoryNote.NO_HISTORY: (
        "no events were recorded: this is the memory in use when the snapshot was made, and not "
        "the peak before it; call torch.cuda.memory._record_memory_history() before the program"
    ),
    MemoryNote.NO_TIMES: "the snapshot has no clock: moments are numbers of events",
    MemoryNote.NO_STEPS: (
        "fewer than two steps were found, so that growth from step to step is not known"
    ),
    MemoryNote.EVENTS_LOST: (
        "the oldest events are gone, because the recording keeps a limited number (max_entries): "
        "{bytes:bytes} are older"
    ),
    MemoryNote.BEFORE_RECORDING: (
        "{bytes:bytes} were allocated before the recording began, without a stack"
    ),
    MemoryNote.KINDS_BY_SIZE: (
        "of them {bytes:bytes} are taken for parameters and the optimizer's state, because "
        "gradients have the same sizes"
    ),
    MemoryNote.DAMAGED: "{count:plural record} of the snapshot are damaged and were left out",
    MemoryNote.UNMATCHED: "{count:plural release} belong to no block that was recorded",
    MemoryNote.END_DIFFERS: (
        "the events end with {replayed_bytes:bytes} in use, and the segments have "
        "{snapshot_bytes:bytes}: some events are missing"
    ),
}
UNITS: dict[str, Callable[[Any], str]] = {
    "at_line_of": lambda value: f" at {value}" if value else "",
    "colon_number": lambda value: f":{value}" if value else "",
}
KIND_NAMES: dict[MemoryKind, tuple[str, str]] = {
    MemoryKind.PARAMETER: ("parameters", "matmul"),
    MemoryKind.BUFFER: ("buffers", "copy"),
    MemoryKind.GRADIENT: ("gradients", "backward"),
    MemoryKind.OPTIMIZER_STATE: ("optimizer state", "optimizer"),
    MemoryKind.INPUT: ("inputs", "transfer"),
    MemoryKind.ACTIVATION: ("activations", "input"),
    MemoryKind.TEMPORARY: ("temporaries", "embedding"),
    MemoryKind.WORKSPACE: ("workspaces", "collective-wait"),
    MemoryKind.UNKNOWN: ("unknown", "unknown"),
}
"""The name of each kind, and the colour of a page that it borrows."""
