"""Codes that say why a fix is not tried or found nothing to change.

`because(Skip.ENOUGH_WORKERS, workers=8, cores=4)` makes a `Reason`; `ridgeline.report.reasons` has
the English of each code. The comment behind a code names the facts that its template needs.
"""

from enum import StrEnum


class SkipKind(StrEnum):
    """Kinds of reasons. A report puts fixes that were skipped for the same kind of reason in one
    line. Kinds that a person can act on come first."""

    PROGRAM_FAILED = "program-failed"
    OUT_OF_TIME = "out-of-time"
    ONLY_IF_ASKED = "only-if-asked"
    KEEP_EXACT = "keep-exact"
    LITTLE_TO_GAIN = "little-to-gain"
    SAVES_MEMORY = "saves-memory"
    ALREADY_SO = "already-so"
    DOES_NOT_TRAIN = "does-not-train"
    TRAINS = "trains"
    MACHINE = "machine"
    ABSENT = "absent"
    OTHER = "other"


class Skip(StrEnum):
    """Why a fix was not tried (`able` said so) or not applied (it found nothing to change)."""

    kind: SkipKind

    def __new__(cls, code: str, kind: SkipKind = SkipKind.OTHER) -> "Skip":
        member = str.__new__(cls, code)
        member._value_ = code
        member.kind = kind
        return member

    # The machine
    NO_GPU = "skip.no-gpu", SkipKind.MACHINE
    NO_CPU_WORK = "skip.no-cpu-work", SkipKind.MACHINE
    GPU_LACKS = "skip.gpu-lacks", SkipKind.MACHINE  # feature
    GPU_HAS_BFLOAT16 = "skip.gpu-has-bfloat16", SkipKind.MACHINE
    DTYPE_EMULATED = "skip.dtype-emulated", SkipKind.MACHINE  # dtype
    NO_INT8_PRODUCTS = "skip.no-int8-products", SkipKind.MACHINE
    NO_COMPILER = "skip.no-compiler", SkipKind.MACHINE
    TORCH_LACKS = "skip.torch-lacks", SkipKind.MACHINE  # feature
    NO_AFFINITIES = "skip.no-affinities", SkipKind.MACHINE
    NOT_GLIBC = "skip.not-glibc", SkipKind.MACHINE
    ONE_CORE = "skip.one-core", SkipKind.MACHINE
    NUMA_UNKNOWN = "skip.numa-unknown", SkipKind.MACHINE
    ONE_NUMA_NODE = "skip.one-numa-node", SkipKind.MACHINE
    GPU_NODE_UNKNOWN = "skip.gpu-node-unknown", SkipKind.MACHINE
    NO_CORE_NEAR_GPU = "skip.no-core-near-gpu", SkipKind.MACHINE
    NODE_TOO_SMALL = "skip.node-too-small", SkipKind.MACHINE  # threads, workers, cores
    NODE_NOT_ALLOWED = "skip.node-not-allowed", SkipKind.MACHINE

    # The program does so already, or its environment decides
    ALREADY_SET = "skip.already-set", SkipKind.ALREADY_SO  # setting
    ALREADY_FUSED = "skip.already-fused", SkipKind.ALREADY_SO
    TORCH_DOES_SO = "skip.torch-does-so", SkipKind.ALREADY_SO
    FUSED_IS_BETTER = "skip.fused-is-better", SkipKind.ALREADY_SO  # optimizer
    EVERY_CORE_ALLOWED = "skip.every-core-allowed", SkipKind.ALREADY_SO
    BOUND_TO_CORES = "skip.bound-to-cores", SkipKind.ALREADY_SO  # allowed_cores, all_cores
    BOUND_TO_NODE = "skip.bound-to-node", SkipKind.ALREADY_SO
    SET_BY_ENVIRONMENT = "skip.set-by-environment", SkipKind.ALREADY_SO  # variable
    ENOUGH_WORKERS = "skip.enough-workers", SkipKind.ALREADY_SO  # workers, cores
    DATASET_ON_GPU = "skip.dataset-on-gpu", SkipKind.ALREADY_SO

    # Training or not
    DOES_NOT_TRAIN = "skip.does-not-train", SkipKind.DOES_NOT_TRAIN
    TRAINS = "skip.trains", SkipKind.TRAINS

    # The program has nothing that the fix could change
    NO_LOADER = "skip.no-loader", SkipKind.ABSENT
    NOT_A_LOADER = "skip.not-a-loader", SkipKind.ABSENT  # loader
    NO_WORKERS = "skip.no-workers", SkipKind.ABSENT
    WORKERS_START_ONCE = "skip.workers-start-once", SkipKind.ABSENT
    NO_BATCHING = "skip.no-batching", SkipKind.ABSENT
    ONE_BATCH = "skip.one-batch", SkipKind.ABSENT
    NO_COPIES = "skip.no-copies", SkipKind.ABSENT
    NO_BLOCKING_COPY = "skip.no-blocking-copy", SkipKind.ABSENT
    NO_PINNED_COPY = "skip.no-pinned-copy", SkipKind.ABSENT
    NO_OPTIMIZER = "skip.no-optimizer", SkipKind.ABSENT
    NO_KNOWN_OPTIMIZER = "skip.no-known-optimizer", SkipKind.ABSENT
    OPTIMIZER_NOT_TORCHS = "skip.optimizer-not-torchs", SkipKind.ABSENT  # optimizer
    NO_FUSED_OPTIMIZER = "skip.no-fused-optimizer", SkipKind.ABSENT  # optimizer
    NO_ZERO_FILL = "skip.no-zero-fill", SkipKind.ABSENT
    NO_MODEL_CALL = "skip.no-model-call", SkipKind.ABSENT
    NO_CONVOLUTION = "skip.no-convolution", SkipKind.ABSENT
    NO_FOLDABLE_NORM = "skip.no-foldable-norm", SkipKind.ABSENT
    NO_REPEATED_BLOCKS = "skip.no-repeated-blocks", SkipKind.ABSENT
    NO_LARGE_LINEAR = "skip.no-large-linear", SkipKind.ABSENT  # min_elements
    NO_WIDE_LINEAR = "skip.no-wide-linear", SkipKind.ABSENT  # min_width
    NO_ODD_WIDTH = "skip.no-odd-width", SkipKind.ABSENT  # multiple
    NO_16_BIT_PRODUCTS = "skip.no-16-bit-products", SkipKind.ABSENT
    NO_FLOAT32 = "skip.no-float32", SkipKind.ABSENT  # model
    NO_LARGE_LOSS = "skip.no-large-loss", SkipKind.ABSENT  # min_classes
    NO_WRITTEN_ATTENTION = "skip.no-written-attention", SkipKind.ABSENT
    NO_AFFINITY_LIMIT = "skip.no-affinity-limit", SkipKind.ABSENT
    SAME_SHAPES = "skip.same-shapes", SkipKind.ABSENT
    NOTHING_REWRITTEN = "skip.nothing-rewritten", SkipKind.ABSENT
    NO_BACKWARD_CAPTURED = "skip.no-backward-captured", SkipKind.ABSENT

    # The program resists
    PROGRAM_SETS = "skip.program-sets"  # setting
    OTHER_ALLOCATOR = "skip.other-allocator"  # allocator
    VARIABLE_NOT_SET = "skip.variable-not-set"  # variable
    MALLOPT_REFUSED = "skip.mallopt-refused"
    SHAPES_CHANGE = "skip.shapes-change"
    DETERMINISTIC = "skip.deterministic"
    SEVERAL_OPTIMIZERS = "skip.several-optimizers"  # optimizers
    NOT_CAPTURABLE = "skip.not-capturable"  # optimizer
    DIFFERENTIABLE_UPDATE = "skip.differentiable-update"
    SCALER_ASKS_EVERY_STEP = "skip.scaler-asks-every-step"
    FLOAT16_WITH_SCALER = "skip.float16-with-scaler"
    COMPILED_MODEL = "skip.compiled-model"
    COMPILED_CALLER = "skip.compiled-caller"
    LOOP_NOT_A_FUNCTION = "skip.loop-not-a-function"
    NEEDS_A_PROCESS = "skip.needs-a-process"
    TOO_FEW_STEPS = "skip.too-few-steps"
    TOO_FEW_BATCHES = "skip.too-few-batches"  # batches
    TOO_FEW_BATCHES_LEFT = "skip.too-few-batches-left"  # batches, batch_size, min_batches
    BATCH_OF_ONE = "skip.batch-of-one"
    EVALUATION_DATASET = "skip.evaluation-dataset"
    EVALUATION_LOADER = "skip.evaluation-loader"
    STREAM_SHARED_BY_WORKERS = "skip.stream-shared-by-workers"
    STREAM_KEEPS_POSITION = "skip.stream-keeps-position"  # attribute
    OPEN_FILE = "skip.open-file"  # file_kind
    OWN_GENERATOR = "skip.own-generator"  # generator
    NOT_PICKLABLE = "skip.not-picklable"  # argument, error
    SET_EPOCH = "skip.set-epoch"
    DDP_SENDS_IN_BACKWARD = "skip.ddp-sends-in-backward"
    WRAPPED_IN_DDP = "skip.wrapped-in-ddp"
    SHARDED_MODEL = "skip.sharded-model"
    LAUNCHER_BINDS = "skip.launcher-binds"  # ranks
    TORCHSCRIPT = "skip.torchscript"  # model
    IS_A_LOSS = "skip.is-a-loss"  # model
    COMPILE_DISABLED = "skip.compile-disabled"  # model
    TRAINING_MODE = "skip.training-mode"
    INPUT_NEEDS_GRADIENT = "skip.input-needs-gradient"
    RUNNING_STATISTICS = "skip.running-statistics"
    BATCH_NORM_IN_PARTS = "skip.batch-norm-in-parts"
    FILLS_A_CACHE = "skip.fills-a-cache"
    DRAWS_RANDOM_NUMBERS = "skip.draws-random-numbers"
    WRITES_BUFFERS = "skip.writes-buffers"
    TOO_FEW_ROWS = "skip.too-few-rows"  # parts
    SAMPLES_MEET = "skip.samples-meet"  # error_share
    LINEAR_NOT_CALLED = "skip.linear-not-called"
    LINEAR_NOT_ALIGNED = "skip.linear-not-aligned"  # multiple
    OUTPUTS_NOT_FINITE = "skip.outputs-not-finite"  # dtype
    OUTPUTS_TOO_FAR_OFF = "skip.outputs-too-far-off"  # dtype, error_share
    GRADIENT_HOOK = "skip.gradient-hook"  # owner
    TRAINED_OUTSIDE_FLOAT32 = "skip.trained-outside-float32"
    MISSING_GRADIENT = "skip.missing-gradient"
    NO_ZERO_GRAD_CALL = "skip.no-zero-grad-call"
    TOO_FEW_UPDATES = "skip.too-few-updates"  # min_updates
    NO_STEP_ENDED = "skip.no-step-ended"
    ATTENTION_NOT_REWRITABLE = "skip.attention-not-rewritable"  # detail
    FUNCTION_NOT_FOUND = "skip.function-not-found"  # function, place
    FAILED_TO_APPLY = "skip.failed-to-apply"  # error
