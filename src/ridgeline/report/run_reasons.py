"""The English of the verdict on a run or a trace, of doubts, and of what is missing: a template for
every code.

`ridgeline.report.reasons` explains the templates and fills them.
"""

from ridgeline.records.finding import AnswerCode, Question
from ridgeline.records.run_summary import MissingCode
from ridgeline.records.trace import TraceVerdict
from ridgeline.records.verdict import DecidingCode, DoubtCode, LimitCode

_WHEN = "{phase:at_or_after} step {step}{phase:in_its}"
_AFTER = "{unwatched:some_time}after step {step}{unwatched:last_watched}"
_ON_HOST = "{used_bytes:bytes}{total_bytes:of_bytes}"
_GROWTH = "{growth_bytes:and_growth}"
_LIMITS: dict[str, str] = {
    LimitCode.GPU_WAITS_FOR_DATA: "the GPU waits {share:whole_percent} of each step for data",
    LimitCode.WAITS_FOR_DATA: "{share:whole_percent} of each step is spent waiting for data",
    LimitCode.COPIES: "copies between host and GPU hold up {share:whole_percent} of each step",
    LimitCode.EXCHANGES: (
        "{share:whole_percent} of each step is spent exchanging data between ranks"
    ),
    LimitCode.GPU_WAITS_FOR_HOST: ("the GPU waits {share:whole_percent} of each step for the host"),
    LimitCode.GPU_WAITS_BECAUSE: (
        "the GPU waits {share:whole_percent} of each step for the host: {idle_cause:host_because}"
    ),
    LimitCode.OWN_CODE: (
        "the program's own code outside model, loss and optimizer takes {share:whole_percent} of "
        "each step"
    ),
    LimitCode.OWN_CODE_WAITS: (
        "the program's own code outside model, loss and optimizer takes {share:whole_percent} of "
        "each step, most of it waiting ({cores:.1f} cores busy)"
    ),
    LimitCode.WAITS_FOR_SOMETHING: (
        "{share:whole_percent} of each step is spent waiting, and not for data "
        "({cores:.1f} cores busy)"
    ),
    LimitCode.STARTS_OPERATORS: (
        "{share:whole_percent} of each step goes to Python and to starting operators, not to "
        "their work"
    ),
    LimitCode.SLOW_OPERATORS: (
        "{share:whole_percent} of each step goes to Python and to operators far below the "
        "memory's rate"
    ),
    LimitCode.DEVICE_WORKS: "the {device} works {share:whole_percent} of each step",
    LimitCode.MEMORY_OPERATORS: (
        "operators that wait for the {device}'s memory take {share:whole_percent} of each step"
    ),
    LimitCode.ARITHMETIC: (
        "{dtype:before}arithmetic on the {device} takes {share:whole_percent} of each step"
    ),
    LimitCode.MOSTLY_IN_PHASE: ", {share:whole_percent} of it in {phase:phase_of_work}",
    LimitCode.OTHER_PROCESSES_TOOK: "; other processes took {share:whole_percent} of it",
    LimitCode.GPU_OUT_OF_MEMORY: (
        f"out of memory {_WHEN}: {{asked_bytes:bytes}} asked, {{free_bytes:bytes}} free"
    ),
    LimitCode.ALLOCATOR_RETRIES: (
        "the allocator has to free its cache and try again {retries_per_step:two_digits} a step, "
        "with {share:whole_percent} of the device's memory held"
    ),
    LimitCode.HOST_KILLED: (
        f"the system killed the program for memory {_AFTER}, with {_ON_HOST} resident{_GROWTH}"
    ),
    LimitCode.WORKER_KILLED: (
        f"the system killed a DataLoader worker for memory {_AFTER}, with {_ON_HOST} resident in "
        f"the program and its workers{_GROWTH}"
    ),
    LimitCode.HOST_PERHAPS_KILLED: (
        f"the program was killed, perhaps for memory, {_AFTER}, with {_ON_HOST} resident{_GROWTH}"
    ),
    LimitCode.HOST_OUT_OF_MEMORY: (
        f"the host's memory ran out {_WHEN}: {{asked_bytes:asked}}{_ON_HOST} in use{_GROWTH}"
    ),
    LimitCode.LATE_RANK: (
        "waits for rank {rank}, which is {late_s:seconds} late in each step{place:at_place}"
        "{cause:also}"
    ),
    LimitCode.LATE_RANK_PHASE: (
        "waits for rank {rank}, whose {phase:phase_name} takes {longer_s:seconds} longer"
        "{place:at_place}{cause:also}"
    ),
    LimitCode.NO_RECORD: (
        "the program left no record: it ended before it could write one, or it ran no Python"
    ),
    LimitCode.NO_TORCH: "the program did not import torch",
    LimitCode.KEEPS_COMPILING: (
        "{compiled} of {steps:plural step} compiled, so none is left to be timed: find out why the "
        "program keeps compiling"
    ),
    LimitCode.NO_PHASES: "steps were timed, but their phases were not recorded",
    LimitCode.NO_TIMED_STEP: "{steps:plural step} seen, but none of them can be timed",
    LimitCode.STEPS_IN_CHILDREN: (
        "no step was seen in this process: the program started {processes:processes} of its own "
        "with {function}(), and those are not recorded"
    ),
    LimitCode.NO_STEP: (
        "no step was seen: no optimizer step, backward or model call in this process; call "
        "ridgeline.step() at the end of each iteration"
    ),
    LimitCode.RECORDED_ELSEWHERE: "this block is recorded by the run around it",
    LimitCode.FAILED: "no verdict could be reached",
}
_FEW = "no timed window was recorded; the times are of {steps} steps "
_NOT_COUNTED = "not counted: {pauses} of {steps} steps, which held "
_DOUBTS: dict[str, str] = {
    DoubtCode.NO_TRACED_STEP: "no step was traced, so the verdict rests on the phases alone",
    DoubtCode.NO_DEVICE_WORK: "the trace holds no device work, so the verdict rests on the phases "
    "alone",
    DoubtCode.NO_CEILINGS: (
        "compute and memory are distinguished by the kind of operator, because too few operators "
        "have a known ceiling"
    ),
    DoubtCode.INPUT_BY_NAME: "no DataLoader was seen; {function}() counts as input because of its "
    "name",
    DoubtCode.OTHER_PROCESSES_TRAIN: (
        "only the process that started {processes} others was recorded, and the others may do the "
        "training"
    ),
    DoubtCode.NEXT_BOUND: (
        "without this wait the program would be {bound} ({share:whole_percent} of the step)"
    ),
    DoubtCode.CLOSE_BOUND: "{bound} is nearly as likely ({share:whole_percent} of the step)",
    DoubtCode.LOW_BANDWIDTH: (
        "these operators reach only {share:whole_percent} of the memory's bandwidth"
    ),
    DoubtCode.UNEXPLAINED_SLOWNESS: (
        "operators are large and reach only {share:whole_percent} of the memory's bandwidth, for "
        "an "
        "unknown reason"
    ),
    DoubtCode.PREEMPTED: "other processes took {share:whole_percent} of the step",
    DoubtCode.OTHER_PROGRAMS: "other programs took {cores:.1f} of {machine_cores} cores",
    DoubtCode.STRETCHED_BY_TRACING: (
        "traced steps took {factor:two_digits} × as long as untraced ones; if tracing slowed "
        "operators as much as the rest, the verdict would be {bound}"
    ),
    DoubtCode.FEW_STEPS: "the steps are few or unsteady",
    DoubtCode.TRACE: "{text}",
    DoubtCode.ONLY_TRACED_STEPS: "it rests on the traced steps alone",
    DoubtCode.KILL_NOT_EXPLAINED: "it is not known why the program was killed",
    DoubtCode.NOTHING_TIMED: "nothing was timed",
    DoubtCode.NO_PHASE_RECORDED: "no phase was recorded",
    DoubtCode.RECORDED_ELSEWHERE: "this block is recorded by the run around it",
    DoubtCode.NO_STEP_SEEN: "no step was seen",
    DoubtCode.ALL_COMPILING: "only {steps:plural step} ran, and every one compiled",
    DoubtCode.TOO_FEW_FOR_INTERVAL: "only {steps:plural steady step}, too few for an interval",
    DoubtCode.NO_TIMED_WINDOW: f"{_FEW}before it",
    DoubtCode.ONLY_DISTURBED_STEPS: f"{_FEW}that were traced or disturbed",
    DoubtCode.SLOWING: (
        "steps never became steady ({share:percent} slower in the second half of the window)"
    ),
    DoubtCode.QUICKENING: (
        "steps never became steady ({share:percent} faster in the second half of the window)"
    ),
    DoubtCode.PAUSES: (
        f"{_NOT_COUNTED}a pause (a checkpoint, a stall) of up to {{longest_s:seconds}}"
    ),
    DoubtCode.EVALUATIONS: f"{_NOT_COUNTED}an evaluation of up to {{longest_s:seconds}}",
    DoubtCode.UNEVEN_STEPS: (
        "steps are uneven: the mean is {factor:.1f} × the median; rates use the mean"
    ),
}
_REPLACE = "ridgeline hardware --measure on a quiet machine replaces it"
_MISSING: dict[str, str] = {
    MissingCode.CHILDREN: (
        "{processes:processes} that the program started with {function}() ({place}): only the "
        "process that started them is recorded"
    ),
    MissingCode.NO_TRACED_STEP: (
        "no step was traced; FLOPs, MFU and the reasons for waiting are not known"
    ),
    MissingCode.TOO_FEW_STEPS_TO_TRACE: (
        "no step was traced: {steps:too_few_steps}; FLOPs, MFU and the reasons for waiting are not "
        "known"
    ),
    MissingCode.NO_MATRIX_PRODUCT: "FLOPs: no matrix product was seen in the traced steps",
    MissingCode.FLOPS: "FLOPs: {text}",
    MissingCode.PARTIAL_FLOPS: (
        "FLOPs cover {share:percent} of operator time{operators:no_formula}"
    ),
    MissingCode.CEILING_EXCEEDED_HERE: (
        "MFU: {dtype} ceiling exceeded, probably measured on a busy machine ({flops_s:flops} here, "
        f"{{ceiling_flops_s:flops}} the ceiling); {_REPLACE}"
    ),
    MissingCode.CEILING_EXCEEDED: (
        "MFU: the {dtype:before}ceiling of this {device} was exceeded by a program and is not "
        f"used; {_REPLACE}"
    ),
    MissingCode.CEILING_DISTURBED: (
        "MFU: the {dtype:before}ceiling of this {device} was measured while the machine was busy "
        f"and is not used; {_REPLACE}"
    ),
    MissingCode.NO_CEILING: (
        "MFU: no {dtype:before}ceiling of this {device} is known; ridgeline hardware --measure "
        "measures it"
    ),
    MissingCode.BATCH_SIZE: "samples a second: the batch's size was not recognised",
    MissingCode.TELEMETRY: "no telemetry was recorded",
    MissingCode.ENERGY_TOO_SHORT: "energy: the timed steps ended too soon for the energy counter",
    MissingCode.NO_ENERGY_COUNTER: "energy: this machine has no energy counter that can be read",
    MissingCode.OTHER_RANKS: (
        "times and work are those of one rank; throughput is multiplied by the {ranks} ranks, as "
        "in data parallelism"
    ),
    MissingCode.LAST_WORDS: ("the last records of the program: no space was left on the disk"),
}
_BUSY = "{devices:device_is} busy {share:whole_percent} of {window_ns:ns}{longest_ns:to_longest}"
_TRACES: dict[str, str] = {
    TraceVerdict.BUSY: _BUSY,
    TraceVerdict.BUSY_WITH: f"{_BUSY}, {{category_share:whole_percent}} of it {{category}}",
    TraceVerdict.COPIES: (
        f"{_BUSY}, but {{copied_share:whole_percent}} of that copies data to or from the host"
    ),
    TraceVerdict.IDLE: (
        "{devices:device_idles} {share:whole_percent} of {window_ns:ns}{longest_ns:to_longest}, "
        "{cause_share:whole_percent} of that {idle_cause:idle_because}{place:in_brackets}"
    ),
    TraceVerdict.UNKNOWN: "how busy the device was cannot be told: {doubt}",
    TraceVerdict.NO_TIMED_WORK: "the trace holds no timed work",
    TraceVerdict.NO_OPERATORS: "no device work and no operators in {window_ns:ns}",
    TraceVerdict.GPU_NOT_RECORDED: (
        "only the host was recorded, though the program uses GPUs ({evidence}): {op} takes most "
        "of its time, {ns:ns}"
    ),
    TraceVerdict.HOST_ONLY: "no device work: on the host {op} takes most, {ns:ns}",
}
_LIST = "{first:comma}"
_ANSWERS: dict[str, str] = {
    AnswerCode.END: ".",
    AnswerCode.NOT_KNOWN: "Not known: {cause}.",
    AnswerCode.NOT_TRACED: "no step was traced",
    AnswerCode.PROFILES_ITSELF: "no trace: the program profiles itself",
    AnswerCode.DISK_FULL: "no trace: less than 512 MB are free on the disk",
    AnswerCode.TRACE_TOO_LARGE: (
        "the trace was larger than 2 GB and was not kept: --trace-steps 1"
    ),
    AnswerCode.NO_DEVICE_TIME: "the trace does not tell the device's time",
    AnswerCode.NO_OPERATORS: "the trace holds no operators",
    AnswerCode.NO_SHAPES: "shapes were not recorded (record_shapes=True)",
    AnswerCode.NO_FORMULAS: "no operator of it has a formula",
    AnswerCode.NO_MEMORY: "memory was not recorded (profile_memory=True)",
    AnswerCode.IN_TEXT: "{text}",
    AnswerCode.DRIVER_SAW: (
        " The driver saw a kernel run {share:rough_percent} of the time, however small."
    ),
    AnswerCode.CPU_WORKS: (
        "The CPU works {share:rough_percent} of a step of {step_s:seconds} on the model"
    ),
    AnswerCode.GPU_WORKS: (
        "{busy:yes_or_no}: the GPU works {share:rough_percent} of a step of {step_s:seconds}"
    ),
    AnswerCode.BUSY_ONLY_WITH: (
        "Only with {part:part_of_step}: it computes {share:rough_percent} of a step of "
        "{step_s:seconds}"
    ),
    AnswerCode.REST_IS: "; the rest is ",
    AnswerCode.WAITS_FOR: "; it waits for ",
    AnswerCode.EXPOSED: "; exposed: ",
    AnswerCode.PART: f"{_LIST}{{part:part_of_step}} {{share:rough_percent}}",
    AnswerCode.OF_DEVICE_TIME: "Of device time: ",
    AnswerCode.OF_OPERATOR_TIME: "Of operator time: ",
    AnswerCode.BY_KIND: " By kind: ",
    AnswerCode.WORK: f"{_LIST}{{name}}{{op:in_brackets}} {{share:rough_percent}}",
    AnswerCode.OTHER_KERNELS: "; {kernels:other_kernels} the rest",
    AnswerCode.INTENSITY_PARTLY_KNOWN: (
        "The step's is not known: shapes and formulas tell only {share:rough_percent} of operator "
        "time."
    ),
    AnswerCode.STEP_WORK: (
        "A step does {flops:flop} on {bytes:bytes} at least, {flops_per_byte:three_digits} "
        "FLOP/byte"
    ),
    AnswerCode.RIDGE: ", {above:above_or_below} the ridge at {ridge:three_digits} ({dtype})",
    AnswerCode.RIDGE_UNKNOWN: "; where the ridge of this device is, is not known",
    AnswerCode.LIMITS: " Of operator time ",
    AnswerCode.LIMITS_UNKNOWN: " How near its operators come to their ceilings is not known.",
    AnswerCode.LIMITED: (
        "{first:semicolon}{share:rough_percent} is limited by {limit}{attained:of_that_ceiling}"
    ),
    AnswerCode.REST_WITHOUT_FORMULA: "; {share:rough_percent} has no formula",
    AnswerCode.NO_GAPS: "None worth a word: the device idles {share:rough_percent} of the time.",
    AnswerCode.NO_GAPS_ON_CPU: (
        "None to look for: on a CPU the operators are the host's own work."
    ),
    AnswerCode.STEP_WAITS: " {share:rough_percent} of the step waits, for data or other ranks.",
    AnswerCode.OF_IDLE_TIME: "Of the idle time: ",
    AnswerCode.GAP: (
        "{first:semicolon}{idle_cause} {share:rough_percent}{place:at_line}{gaps:gaps_a_step}"
    ),
    AnswerCode.LINES_UNKNOWN: (" Lines are not known: stacks were not recorded (with_stack=True)."),
    AnswerCode.DEVICE_PEAK: "{bytes:bytes}{total_bytes:of_bytes}",
    AnswerCode.HOST_PEAK: "{bytes:bytes} resident, the program and its workers",
    AnswerCode.PEAK_ON: "{bytes:bytes} on {device}",
    AnswerCode.TRACED_PEAK: "; of the traced steps the highest is {bytes:bytes}",
    AnswerCode.TRACED_RISE: "; the traced steps add at most {bytes:bytes} to what was there",
    AnswerCode.NO_ALLOCATIONS: "; when is not known: no allocation was traced",
    AnswerCode.IN_STEP: ", in step {step}",
    AnswerCode.IN_PHASE: ", in the {phase}",
    AnswerCode.IN_MODULE: ", in {module}",
    AnswerCode.AT_OPERATOR: ", at {op}",
    AnswerCode.NOTE: " ({text})",
    AnswerCode.GROWS: " It grows {bytes:bytes} a step.",
}
QUESTIONS: dict[str, str] = {
    Question.BUSY: "Is the device busy?",
    Question.KERNELS: "Which kernels?",
    Question.OPERATORS: "Which operators?",
    Question.INTENSITY: "Which intensity?",
    Question.GAPS: "Which gaps?",
    Question.PEAK: "Where is the peak?",
}
PARTS_OF_STEP: dict[str, str] = {
    "data": "data",
    "host": "the host (Python, launches)",
    "copies": "copies",
    "communication": "communication",
    "waiting": "waiting for data",
    "other-ranks": "other ranks",
    "python": "Python and starts of operators",
    "other-processes": "other processes",
}
"""What else a step consists of, in answers: the first four on a GPU, the others on a CPU."""
TEMPLATES: dict[str, str] = {**_LIMITS, **_DOUBTS, **_MISSING, **_TRACES, **_ANSWERS}
"""Code to template."""

_OF_STEP = "{value:whole_percent} of the step"
NUMBERS: dict[DecidingCode, tuple[str, str]] = {
    DecidingCode.INPUT: ("input wait", _OF_STEP),
    DecidingCode.TRANSFER: ("copies between host and device", _OF_STEP),
    DecidingCode.OVERHEAD: ("overhead", _OF_STEP),
    DecidingCode.COMMUNICATION: ("exposed communication", _OF_STEP),
    DecidingCode.COMPUTE: ("compute-limited operators", _OF_STEP),
    DecidingCode.MEMORY: ("memory-limited operators", _OF_STEP),
    DecidingCode.GPU_BUSY: ("GPU at work", _OF_STEP),
    DecidingCode.OPERATORS_BUSY: ("operators at work", _OF_STEP),
    DecidingCode.IDLE_CAUSE: ("{idle_cause}", _OF_STEP),
    DecidingCode.OPERATORS: ("operators", "{value:,.0f} a step"),
    DecidingCode.CORES: ("the program's processor use", "{value:.1f} cores"),
    DecidingCode.BANDWIDTH: ("their bandwidth", "{value:whole_percent} of the ceiling"),
    DecidingCode.FLOP_RATE: (
        "FLOP/s", "{value:whole_percent} of the peak ({dtype}, {ceiling_source:ceiling_source})"
    ),
    DecidingCode.ASKED_BYTES: ("asked for", "{value:bytes}"),
    DecidingCode.FREE_BYTES: ("free", "{value:bytes} of {total_bytes:bytes}"),
    DecidingCode.USED_BYTES: ("in use", "{value:bytes}{total_bytes:of_bytes}"),
    DecidingCode.GROWTH_BYTES: ("growth", "{value:bytes} a step"),
    DecidingCode.RETRIES: ("allocator retries", "{value:two_digits} a step"),
    DecidingCode.RESERVED: ("memory reserved", "{value:whole_percent} of the device"),
    DecidingCode.RANK_WAIT: ("waiting for rank {rank}", f"{_OF_STEP}, {{late_s:seconds}}"),
    DecidingCode.SLOWEST_RANK: ("slowest rank", "in {times} of {of:plural step}"),
    DecidingCode.LAST_RANK: ("last to arrive", "to {times} of {of:plural collective}"),
}  # fmt: skip
"""The name of a deciding number, and its value in words."""
