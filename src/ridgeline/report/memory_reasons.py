"""The sentences about memory: what would need less memory, and what a snapshot does not say.
`ridgeline.report.reasons` fills in their facts."""

from collections.abc import Callable
from typing import Any

from ridgeline.records.memory import AdviceCode, MemoryKind, MemoryNote

TEMPLATES: dict[str, str] = {
    AdviceCode.EXPANDABLE_SEGMENTS: (
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {stuck_bytes:bytes} of the reserved "
        "memory are free, but cannot be given back, because they lie between blocks in use"
    ),
    AdviceCode.CHECKPOINT: (
        "checkpoint the repeated blocks (torch.utils.checkpoint): each of their lines has at least "
        "{repeats} activations live at the peak, {activations_bytes:bytes} in all"
    ),
    AdviceCode.FREE_GRADIENTS: (
        "release the gradients before the forward, with optimizer.zero_grad(set_to_none=True): "
        "those of the step before are still allocated at the peak"
    ),
    AdviceCode.SMALLER_BATCH: (
        "halve the batch, and accumulate the gradients of two halves: activations shrink with the "
        "batch"
    ),
    AdviceCode.LOWER_PRECISION: "compute the forward in bfloat16 (torch.autocast)",
    AdviceCode.SMALLER_OPTIMIZER_STATE: (
        "keep the optimizer's state in 8 bits, or shard it over the ranks: the state takes "
        "{state_bytes:bytes}"
    ),
    AdviceCode.CHUNKED_LOSS: (
        "compute the loss over chunks of the tokens: the logits and the tensors of the same size "
        "beside them take {logits_bytes:bytes}"
    ),
    AdviceCode.STOP_GROWTH: (
        "stop the growth{file:at_line_of}{line:colon_number}: each step leaves "
        "{bytes_per_step:bytes} behind"
    ),
    AdviceCode.NO_GRADIENTS: (
        "if no backward follows, run the model under torch.inference_mode(): the recording has no "
        "backward, and yet activations are kept"
    ),
    AdviceCode.OTHER_PROCESSES: (
        "free the {bytes:bytes} on the device that torch does not manage: other programs, "
        "contexts, buffers of libraries"
    ),
    MemoryNote.NO_STACKS: (
        "no stacks were recorded, so lines, modules and kinds are unknown: record with "
        'torch.cuda.memory._record_memory_history(stacks="python")'
    ),
    MemoryNote.NO_HISTORY: (
        "no events were recorded: the figures are of the moment when the snapshot was made, and "
        "not of the peak before it; call torch.cuda.memory._record_memory_history() at the start "
        "of the program"
    ),
    MemoryNote.NO_TIMES: (
        "the events of the snapshot have no times: a moment is given as the number of its event"
    ),
    MemoryNote.NO_STEPS: (
        "fewer than two steps were found, so growth from step to step is not known"
    ),
    MemoryNote.EVENTS_LOST: (
        "the oldest events are gone, because a recording keeps only the newest (max_entries): "
        "{bytes:bytes} were allocated before the events that are left"
    ),
    MemoryNote.BEFORE_RECORDING: (
        "{bytes:bytes} were allocated before the recording began, and have no stack"
    ),
    MemoryNote.KINDS_BY_SIZE: (
        "{bytes:bytes} from before the recording are counted as parameters and optimizer state, "
        "because gradients have the same sizes"
    ),
    MemoryNote.DAMAGED: "the snapshot has {count:plural damaged record}, which no figure counts",
    MemoryNote.UNMATCHED: "the snapshot has {count:plural release} whose allocation is missing",
    MemoryNote.END_DIFFERS: (
        "after the last event {replayed_bytes:bytes} are in use by the events, and "
        "{snapshot_bytes:bytes} by the list of segments: some events are missing"
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
"""The name of each kind, and the name of the colour that a page draws it in."""
