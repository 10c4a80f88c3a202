"""Codes of fixes: why one is skipped, what one did, and what is left to write by hand.

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
    """Says why a fix was not tried (`reason_to_skip`) or not applied (nothing to change)."""

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
    NOTHING_LEFT_TO_SET = "skip.nothing-left-to-set", SkipKind.ALREADY_SO
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
    DOES_NOT_GENERATE = "skip.does-not-generate", SkipKind.ABSENT

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
    REPLICATED = "skip.replicated"
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
    OWN_CACHE = "skip.own-cache"
    NO_CACHE = "skip.no-cache"
    CAST_AT_EACH_TOKEN = "skip.cast-at-each-token"
    FLOATING_INPUTS = "skip.floating-inputs"  # model
    CACHE_GROWS = "skip.cache-grows"
    OTHER_DECODING = "skip.other-decoding"
    NO_STATIC_CACHE = "skip.no-static-cache"  # model
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
    SOURCE_NOT_PARSED = "skip.source-not-parsed"  # error
    NO_FUNCTION_AT_LINE = "skip.no-function-at-line"
    TORCH_NOT_IMPORTED = "skip.torch-not-imported"
    NO_ATTENTION_CHAIN = "skip.no-attention-chain"
    WEIGHTS_CHANGED = "skip.weights-changed"
    SCORES_CHANGED = "skip.scores-changed"
    ATTENTION_CALL = "skip.attention-call"  # function, to_weights
    SOFTMAX_DIMENSION = "skip.softmax-dimension"
    SCORES_FILLED = "skip.scores-filled"
    SEVERAL_MASKS = "skip.several-masks"
    SCORES_USED_ELSEWHERE = "skip.scores-used-elsewhere"  # name
    SHARED_LINE = "skip.shared-line"
    SOURCE_FILE_MISSING = "skip.source-file-missing"  # file
    FUNCTION_NOT_FOUND = "skip.function-not-found"  # function, place
    FAILED_TO_APPLY = "skip.failed-to-apply"  # error


class Done(StrEnum):
    """Says what a fix did to a target. The facts are all that its patch is made from."""

    OPTION = "done.option"  # call, option, value: the keyword that a call got
    SETTING = "done.setting"  # code: the statement that sets it
    VARIABLE = "done.variable"  # variable, value
    CORES_FREED = "done.cores-freed"  # before, after
    BOUND_TO_GPU_NODE = "done.bound-to-gpu-node"  # cores, gpu
    BOUND_TO_NODE = "done.bound-to-node"  # cores, node
    LARGER_BATCH = "done.larger-batch"  # batch_size, factor, before
    AUTOCAST = "done.autocast"  # model, device, dtype
    LARGE_LOGITS_STAY = "done.large-logits-stay"
    STEP_SKIPPED = "done.step-skipped"  # skipped
    CHANNELS_LAST = "done.channels-last"  # model, memory_format ("" if several), images
    CHECKPOINT_METHOD = "done.checkpoint-method"  # model, path
    CHECKPOINT_BLOCKS = "done.checkpoint-blocks"  # model, block, blocks, all_blocks
    CHECKPOINT_CALL = "done.checkpoint-call"  # block
    COMPILED = "done.compiled"  # model, arguments, mode
    COMPILED_BLOCKS = "done.compiled-blocks"  # model, block, blocks
    BACKWARD_CAPTURED = "done.backward-captured"
    STEP_CAPTURED = "done.step-captured"  # parameters
    LOSS_CHUNKED = "done.loss-chunked"  # classes, rows
    LOSS_COMPILED = "done.loss-compiled"  # classes
    NORMS_FOLDED = "done.norms-folded"  # model, norms
    CALLED_IN_PARTS = "done.called-in-parts"  # model, parts
    INFERENCE_MODE = "done.inference-mode"  # model
    HALF_WEIGHTS = (
        "done.half-weights"  # model, dtype, buffers: whether it has any in floating point
    )
    KV_CACHE = "done.kv-cache"  # model
    STATIC_CACHE = "done.static-cache"  # model
    PADDED_LAYER = "done.padded-layer"  # layer, width
    INT8_WEIGHTS = "done.int8-weights"  # model, layers
    INT8_SOME_WEIGHTS = "done.int8-some-weights"
    # model, layers, exact, most_sensitive, error_share
    FLOAT8_PRODUCTS = "done.float8-products"  # model, layers, rest_in_bfloat16
    OUTPUTS_COMPARED = "done.outputs-compared"  # batches, error_share
    TOP_CLASS_COMPARED = "done.top-class-compared"  # batches, error_share, rows, same_rows
    FUNCTION_REWRITTEN = "done.function-rewritten"  # function


class ByHand(StrEnum):
    """Says what the user must write, and where, if no edit does it safely. The cause says why."""

    AFTER_MODEL_MADE = "by-hand.after-model-made"  # statement
    BEFORE_MODEL_CALL = "by-hand.before-model-call"  # statement
    AROUND_MODEL_CALL = "by-hand.around-model-call"  # header
    IN_SET_UP = "by-hand.in-set-up"  # statement
    NEAR_LINE = "by-hand.near-line"  # line, statement
    CHUNKED_CROSS_ENTROPY = "by-hand.chunked-cross-entropy"  # file, line
    COMPILED_CROSS_ENTROPY = "by-hand.compiled-cross-entropy"  # file, line
    GRADIENT_SCALER = "by-hand.gradient-scaler"  # device, header, init_scale
    LAYOUT_OF_EACH = "by-hand.layout-of-each"
    CHECKPOINT_CALLS = "by-hand.checkpoint-calls"
    SOME_BLOCKS = "by-hand.some-blocks"
    COMPILED_AUTOGRAD = "by-hand.compiled-autograd"  # flag, header
    FOLD_NORMS = "by-hand.fold-norms"
    FLOAT8_LAYERS = "by-hand.float8-layers"
    INT8_LAYERS = "by-hand.int8-layers"
    CALL_IN_PARTS = "by-hand.call-in-parts"  # parts
    BATCH_SIZE = "by-hand.batch-size"  # place, factor
    ARGUMENT_BATCH_SIZE = "by-hand.argument-batch-size"  # argument, factor
    PADDED_PRODUCT = "by-hand.padded-product"  # layer, multiple
    FUSED_ATTENTION = "by-hand.fused-attention"  # file, line
    STEP_GRAPH = "by-hand.step-graph"
    OPTIMIZER_CLASS = "by-hand.optimizer-class"  # optimizer, option, value
    GIVE_ARGUMENT = "by-hand.give-argument"  # call, argument, place ("" if not known)
    GIVE_TRAINER_ARGS = "by-hand.give-trainer-args"  # trainer, argument, place
    GIVE_FLAG = "by-hand.give-flag"  # flag
    GIVE_LIGHTNING_TRAINER = "by-hand.give-lightning-trainer"  # argument, place, clips
    NAME_MODEL = "by-hand.name-model"  # call, place, statement
    WRITER_FAILED = "by-hand.writer-failed"  # title, error
    FILE_NOT_COPIED = "by-hand.file-not-copied"  # file, diff_file
    NAME_TAKEN = "by-hand.name-taken"  # file, copy
    # Edits that were refused: the cause is an `Obstacle`
    GIVE_KEYWORD = "by-hand.give-keyword"  # file, line, call, name, value
    PUT_BESIDE = "by-hand.put-beside"  # file, line, where, text
    PUT_WITHIN = "by-hand.put-within"  # file, first, last, header
    REPLACE = "by-hand.replace"  # file, line, before, text
    REWRITE = "by-hand.rewrite"  # file, first, last, text
    PUT_IMPORT = "by-hand.put-import"  # file, text
    PUT_AT_START = "by-hand.put-at-start"  # file, text
    PUT_AFTER_IMPORTS = "by-hand.put-after-imports"  # file, text
    # Causes
    BLOCKS_NOT_NAMED = "by-hand.blocks-not-named"
    SIZE_UNREADABLE = "by-hand.size-unreadable"
    SIZE_OF_OTHER_NAME = "by-hand.size-of-other-name"
    SIZE_EXPRESSION = "by-hand.size-expression"  # expression
    NO_LINE_CALLS_MODEL = "by-hand.no-line-calls-model"
    FILE_UNREADABLE = "by-hand.file-unreadable"  # file


class Obstacle(StrEnum):
    """Says why the user's source cannot be read or edited safely."""

    # The reader of models
    NOT_PYTHON = "obstacle.not-python"  # error
    MODEL_CALLS_ITSELF = "obstacle.model-calls-itself"  # line
    NO_NAMED_CALL = "obstacle.no-named-call"  # line
    NO_CALL_OF = "obstacle.no-call-of"  # name, line
    ONE_STATEMENT = "obstacle.one-statement"
    NO_BACKWARD = "obstacle.no-backward"
    CALL_IN_HEADER = "obstacle.call-in-header"  # line
    MADE_IN_OTHER_FILE = "obstacle.made-in-other-file"  # name, function
    NOT_ASSIGNED_BEFORE = "obstacle.not-assigned-before"  # name, line
    OUTSIDE_A_CLASS = "obstacle.outside-a-class"  # name
    NOT_ASSIGNED_IN_CLASS = "obstacle.not-assigned-in-class"  # name
    HANDED_WITHOUT_NAME = "obstacle.handed-without-name"  # line, name
    FAR_AWAY = "obstacle.far-away"
    FROM_SEVERAL_PLACES = "obstacle.from-several-places"  # function, name
    ASSIGNED_EVERY_PASS = "obstacle.assigned-every-pass"  # name, line
    NO_PLAIN_BACKWARD = "obstacle.no-plain-backward"  # first, last
    SEVERAL_STEPS = "obstacle.several-steps"  # optimizers
    GRADIENTS_READ = "obstacle.gradients-read"
    NO_FREE_NAME = "obstacle.no-free-name"

    # The editor
    NOT_DECODED = "obstacle.not-decoded"  # error
    NOT_PARSED = "obstacle.not-parsed"  # line
    NESTED_TOO_DEEPLY = "obstacle.nested-too-deeply"
    NOT_ENCODED = "obstacle.not-encoded"  # encoding
    OTHER_ENCODING = "obstacle.other-encoding"
    DOES_NOT_COMPILE = "obstacle.does-not-compile"  # error
    NOT_TOGETHER = "obstacle.not-together"
    OWN_CODE_NOT_PARSED = "obstacle.own-code-not-parsed"
    CONTINUED_LINE = "obstacle.continued-line"
    PART_OF_STATEMENT = "obstacle.part-of-statement"  # line, first
    SEVERAL_STATEMENTS = "obstacle.several-statements"  # line
    NOT_REACHED = "obstacle.not-reached"
    STATEMENT_REWRITTEN = "obstacle.statement-rewritten"
    NO_STATEMENT_IN_IT = "obstacle.no-statement-in-it"
    MUST_STAY_FIRST = "obstacle.must-stay-first"
    OVERLAPS = "obstacle.overlaps"
    DIFFERENT_BLOCKS = "obstacle.different-blocks"  # first, last
    NOT_A_BLOCK_END = "obstacle.not-a-block-end"  # line
    LINES_CHANGED = "obstacle.lines-changed"  # first, last
    NO_WHOLE_STATEMENTS = "obstacle.no-whole-statements"  # first, last
    INDENTED_OTHERWISE = "obstacle.indented-otherwise"
    EDIT_BESIDE = "obstacle.edit-beside"
    NOT_BOUND_AT_START = "obstacle.not-bound-at-start"  # names
    NO_IMPORT = "obstacle.no-import"
    BOUND_TO_OTHER = "obstacle.bound-to-other"  # name, line
    NOT_BOUND_AT_TOP = "obstacle.not-bound-at-top"  # name
    TEXT_NOT_KEPT = "obstacle.text-not-kept"
    NO_STATEMENT = "obstacle.no-statement"  # line
    NO_EXPRESSION = "obstacle.no-expression"  # expression
    NO_NAME = "obstacle.no-name"  # name
    OTHER_VALUE = "obstacle.other-value"  # name, value
    LOOKED_UP_CALL = "obstacle.looked-up-call"  # line, call
    NOT_ONE_CALL = "obstacle.not-one-call"  # calls, call, line
    CALL_IN_STRING = "obstacle.call-in-string"
    MAY_BE_IN_STARS = "obstacle.may-be-in-stars"  # name, stars
    MAY_BE_BARE = "obstacle.may-be-bare"  # name
    VALUE_MAY_DO_MORE = "obstacle.value-may-do-more"  # name, value
    VALUE_ON_SEVERAL_LINES = "obstacle.value-on-several-lines"  # name
    NOT_THERE_ONCE = "obstacle.not-there-once"  # expression, times

    # Copies of files
    PACKAGE_FILE = "obstacle.package-file"
    PACKAGE_DOES_MORE = "obstacle.package-does-more"  # package
    REACHED_THROUGH_PACKAGE = "obstacle.reached-through-package"  # line, importer, package
    NO_IMPORT_LEADS_TO_IT = "obstacle.no-import-leads-to-it"
    MORE_THAN_IMPORT = "obstacle.more-than-import"  # line, importer
    USED_BY_WHOLE_NAME = "obstacle.used-by-whole-name"  # line, importer, name
    OTHER_PATH = "obstacle.other-path"  # line, importer
