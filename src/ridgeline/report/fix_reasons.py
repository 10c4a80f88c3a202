"""The words about fixes: why one was skipped, what one did, and what is left to write by hand.
`ridgeline.report.reasons` fills them in."""

from collections.abc import Callable
from typing import Any

from ridgeline.records.reason_codes import ByHand, Done, Obstacle, Skip

_SKIPPED: dict[str, str] = {
    Skip.NO_GPU: "it needs a GPU",
    Skip.NO_CPU_WORK: "it helps on a CPU, and the work is on the GPU",
    Skip.GPU_LACKS: "this GPU has no {feature}",
    Skip.GPU_HAS_BFLOAT16: "this GPU has bfloat16, which needs no scaled loss",
    Skip.DTYPE_EMULATED: "this processor emulates {dtype}, which is 5 to 20 times slower",
    Skip.NO_INT8_PRODUCTS: "torch has no 8-bit products for this processor",
    Skip.NO_COMPILER: "torch.compile cannot run here: there is no C++ compiler or no Triton",
    Skip.TORCH_LACKS: "this version of torch has no {feature}",
    Skip.NO_AFFINITIES: "this system cannot bind a program to cores",
    Skip.NOT_GLIBC: "the C library is not glibc",
    Skip.ONE_CORE: "there is only one core and one thread",
    Skip.NUMA_UNKNOWN: "the system does not say which cores lie beside which memory",
    Skip.ONE_NUMA_NODE: "the machine has one NUMA node: memory is equally near to all its cores",
    Skip.GPU_NODE_UNKNOWN: "the system does not say which NUMA node the GPU belongs to",
    Skip.NO_CORE_NEAR_GPU: "the program may use no core beside the GPU",
    Skip.NODE_TOO_SMALL: "{threads:plural thread} and {workers:plural worker} need more than the "
    "{cores:plural core} of a NUMA node",
    Skip.NODE_NOT_ALLOWED: "the program may use no core of that NUMA node",
    Skip.ALREADY_SET: "the program has {setting} already",
    Skip.NOTHING_LEFT_TO_SET: "what it would set is set already",
    Skip.ALREADY_FUSED: "the optimizer is fused already, which is faster",
    Skip.TORCH_DOES_SO: "torch does so by itself on a GPU",
    Skip.FUSED_IS_BETTER: "torch has a fused {optimizer}, which is faster",
    Skip.EVERY_CORE_ALLOWED: "the program may use every core already",
    Skip.BOUND_TO_CORES: "the program is bound to {allowed_cores} of {all_cores} cores already",
    Skip.BOUND_TO_NODE: "the program is bound to the cores of one NUMA node already",
    Skip.SET_BY_ENVIRONMENT: "{variable} is set in the environment of the program",
    Skip.ENOUGH_WORKERS: "its loaders have {workers} workers for {cores} cores already",
    Skip.DATASET_ON_GPU: "the tensors of the dataset are on the GPU already",
    Skip.DOES_NOT_TRAIN: "the program does not train",
    Skip.TRAINS: "the program trains",
    Skip.NO_LOADER: "the program has no DataLoader",
    Skip.NOT_A_LOADER: "the loader is a {loader}, not a DataLoader",
    Skip.NO_WORKERS: "the loader has no workers",
    Skip.WORKERS_START_ONCE: "no loader started its workers a second time in the steps seen",
    Skip.NO_BATCHING: "the loader does not collate batches itself",
    Skip.ONE_BATCH: "the loader makes one batch, so none can be made ahead",
    Skip.NO_COPIES: "nothing is copied to the GPU in a step",
    Skip.NO_BLOCKING_COPY: "no copy was found that the program waits for",
    Skip.NO_PINNED_COPY: "no copy of pinned memory to the GPU was seen",
    Skip.NO_OPTIMIZER: "the program has no optimizer",
    Skip.NO_KNOWN_OPTIMIZER: "the program made none of torch's own optimizers",
    Skip.OPTIMIZER_NOT_TORCHS: "{optimizer} is not one of torch's own optimizers",
    Skip.NO_FUSED_OPTIMIZER: "torch has no fused {optimizer}",
    Skip.NO_ZERO_FILL: "no time is lost on filling gradients with zeros",
    Skip.NO_MODEL_CALL: "no module was called to train",
    Skip.NO_CONVOLUTION: "no convolution was seen",
    Skip.NO_FOLDABLE_NORM: "no convolution passes its output to a batch norm in evaluation mode "
    "and to nothing else",
    Skip.NO_REPEATED_BLOCKS: "the model has no repeated blocks that make up most of it",
    Skip.NO_LARGE_LINEAR: "no Linear layer has a weight of {min_elements:,} elements or more",
    Skip.NO_WIDE_LINEAR: "no Linear layer but the last is {min_width} wide in multiples of 16",
    Skip.NO_ODD_WIDTH: "no large product has a side that is not a multiple of {multiple}",
    Skip.NO_16_BIT_PRODUCTS: "its products are not in 16 bits",
    Skip.NO_FLOAT32: "{model} has nothing in float32",
    Skip.NO_LARGE_LOSS: "no eager cross-entropy over {min_classes:,} classes or more is large "
    "enough",
    Skip.NO_WRITTEN_ATTENTION: "no attention that is written out was found to cost time",
    Skip.NO_AFFINITY_LIMIT: "no affinity was found to hold the program back",
    Skip.SAME_SHAPES: "the shapes are the same at every step",
    Skip.NOTHING_REWRITTEN: "no function of the model could be rewritten",
    Skip.NO_BACKWARD_CAPTURED: "no backward was captured",
    Skip.DOES_NOT_GENERATE: "no model generates text with `generate` of transformers",
    Skip.PROGRAM_SETS: "the program sets {setting} itself",
    Skip.OTHER_ALLOCATOR: "the environment chooses another allocator: {allocator}",
    Skip.VARIABLE_NOT_SET: "{variable} was not set when the program began",
    Skip.MALLOPT_REFUSED: "the C library refused the settings",
    Skip.SHAPES_CHANGE: "shapes change from step to step, and each new one would be prepared again",
    Skip.DETERMINISTIC: "the program asks for deterministic algorithms",
    Skip.SEVERAL_OPTIMIZERS: "it must skip a step that overflows, which takes exactly one "
    "optimizer; the program has {optimizers}",
    Skip.NOT_CAPTURABLE: "torch has no {optimizer} that can be captured",
    Skip.DIFFERENTIABLE_UPDATE: "a differentiable update cannot be captured",
    Skip.SCALER_ASKS_EVERY_STEP: "a gradient scaler asks at each step whether it overflowed",
    Skip.FLOAT16_WITH_SCALER: "the program trains in float16 with a scaled loss",
    Skip.COMPILED_MODEL: "the program compiles its model, which 8-bit layers would break up",
    Skip.COMPILED_CALLER: "the program calls its model in a function that it compiles",
    Skip.LOOP_NOT_A_FUNCTION: "the loop is the program's own: only a step given as a function can "
    "be captured whole",
    Skip.NEEDS_A_PROCESS: "it needs a process of its own: use `ridgeline optimize script.py`",
    Skip.TOO_FEW_STEPS: "too few steps were taken to capture one",
    Skip.TOO_FEW_BATCHES: "{batches} batches an epoch are too few to be made larger",
    Skip.TOO_FEW_BATCHES_LEFT: "{batches} batches of {batch_size} would be left in an epoch, fewer "
    "than {min_batches}",
    Skip.BATCH_OF_ONE: "a batch of one sample cannot be divided",
    Skip.EVALUATION_DATASET: "the dataset says that it is for evaluation",
    Skip.EVALUATION_LOADER: "the loader neither shuffles nor is the first: it is taken for one of "
    "an evaluation",
    Skip.STREAM_SHARED_BY_WORKERS: "several workers would split the stream into other batches",
    Skip.STREAM_KEEPS_POSITION: "the dataset keeps its position in {attribute}, and workers start "
    "each epoch with a copy of it",
    Skip.OPEN_FILE: "the dataset keeps a {file_kind} open, whose position forked workers would "
    "share",
    Skip.OWN_GENERATOR: "the dataset keeps a {generator}: each worker would draw the same numbers "
    "from its own copy",
    Skip.NOT_PICKLABLE: "the {argument} of the loader cannot be pickled: {error}",
    Skip.SET_EPOCH: "the dataset has set_epoch(), and persistent workers would not see its calls",
    Skip.DDP_SENDS_IN_BACKWARD: "DDP sends gradients from inside the backward",
    Skip.WRAPPED_IN_DDP: "the model is in DDP, which laid out its gradients when it was made",
    Skip.REPLICATED: "DataParallel copies the model to several devices at each call",
    Skip.SHARDED_MODEL: "the model is sharded: its ranks would overflow one by one",
    Skip.LAUNCHER_BINDS: "its {ranks} processes need a NUMA node each, which only the "
    "launcher can give: try torchrun --numa-binding=node, which newer versions of torch have",
    Skip.TORCHSCRIPT: "{model} is TorchScript",
    Skip.IS_A_LOSS: "{model} is a loss, which stays in float32",
    Skip.COMPILE_DISABLED: "the program keeps {model} from being compiled",
    Skip.TRAINING_MODE: "the model is in training mode",
    Skip.INPUT_NEEDS_GRADIENT: "the model is given tensors that need gradients",
    Skip.RUNNING_STATISTICS: "its blocks keep running statistics (BatchNorm), which would count "
    "every batch twice",
    Skip.BATCH_NORM_IN_PARTS: "a batch norm would see parts of a batch",
    Skip.FILLS_A_CACHE: "the model fills a cache as it runs",
    Skip.OWN_CACHE: "the program gives `generate` a cache of its own",
    Skip.NO_CACHE: "the program generates without a cache of keys and values (use_cache=False)",
    Skip.CAST_AT_EACH_TOKEN: "it would cast the weights again for each token: half-weights casts "
    "them once",
    Skip.FLOATING_INPUTS: "{model} is given floating-point tensors, which would have to be "
    "cast too",
    Skip.CACHE_GROWS: "each token makes the cache larger, and would be captured anew: static-cache "
    "keeps its size",
    Skip.OTHER_DECODING: "it searches beams or uses an assistant, which `generate` compiles "
    "nothing of",
    Skip.NO_STATIC_CACHE: "{model} does not support a cache of a fixed size",
    Skip.DRAWS_RANDOM_NUMBERS: "the model draws random numbers (dropout): parts of a batch would "
    "draw others",
    Skip.WRITES_BUFFERS: "the model writes its buffers as it runs, so it cannot be run again",
    Skip.TOO_FEW_ROWS: "the model's first tensor has fewer than {parts} rows",
    Skip.SAMPLES_MEET: "called in parts its outputs differ by {error_share:percent}: the model "
    "mixes samples",
    Skip.LINEAR_NOT_CALLED: "its Linear layers are not called one by one: a fused path uses their "
    "weights",
    Skip.LINEAR_NOT_ALIGNED: "no product of its Linear layers has sizes in multiples of {multiple}",
    Skip.OUTPUTS_NOT_FINITE: "outputs in {dtype} are not finite, or there are none to compare",
    Skip.OUTPUTS_TOO_FAR_OFF: "in {dtype} its outputs are off by {error_share:percent} of their "
    "norm",
    Skip.GRADIENT_HOOK: "a backward hook of a {owner} would see scaled gradients",
    Skip.TRAINED_OUTSIDE_FLOAT32: "some parameters that train are not in float32",
    Skip.MISSING_GRADIENT: "a parameter got no gradient in a step: zeros would still have moved it",
    Skip.NO_ZERO_GRAD_CALL: "zero_grad(set_to_none=False) was not called",
    Skip.TOO_FEW_UPDATES: "fewer than {min_updates} updates were seen after "
    "zero_grad(set_to_none=False)",
    Skip.NO_STEP_ENDED: "no step ended, so it was not seen whether the program sets it",
    Skip.SOURCE_NOT_PARSED: "the source cannot be parsed: {error}",
    Skip.NO_FUNCTION_AT_LINE: "no function is at that line",
    Skip.TORCH_NOT_IMPORTED: "the file does not import torch by that name",
    Skip.NO_ATTENTION_CHAIN: "no block of the function has a product, a softmax and a product in a "
    "row",
    Skip.WEIGHTS_CHANGED: "the weights are changed after the softmax",
    Skip.SCORES_CHANGED: "the scores are changed by something that is neither a scale nor a mask",
    Skip.ATTENTION_CALL: "{function}() is applied to the {to_weights:weights_or_scores}",
    Skip.SOFTMAX_DIMENSION: "the softmax is not over the last dimension",
    Skip.SCORES_FILLED: "the scores are filled with something that is not a mask",
    Skip.SEVERAL_MASKS: "several masks are applied one after the other",
    Skip.SCORES_USED_ELSEWHERE: "`{name}` is used elsewhere, too",
    Skip.SHARED_LINE: "two statements share a line",
    Skip.SOURCE_FILE_MISSING: "{file} cannot be read",
    Skip.FUNCTION_NOT_FOUND: "{function}() of {place} was not found where the program runs",
    Skip.FAILED_TO_APPLY: "it could not be applied: {error}",
}
_DONE: dict[str, str] = {
    Done.OPTION: "{call}({option}={value})",
    Done.SETTING: "{statement}",
    Done.VARIABLE: "{variable}={value}",
    Done.CORES_FREED: "{before} → {after} cores",
    Done.BOUND_TO_GPU_NODE: "cores {cores}, beside GPU {gpu}",
    Done.BOUND_TO_NODE: "cores {cores}, of NUMA node {node}",
    Done.LARGER_BATCH: "DataLoader(batch_size={batch_size}), {factor} × {before}; the learning "
    "rate is unchanged",
    Done.AUTOCAST: "{model} under {dtype} autocast on the {device:device}",
    Done.LARGE_LOGITS_STAY: "large logits stay in 16 bits",
    Done.STEP_SKIPPED: "{skipped:plural step} skipped, because gradients overflowed",
    Done.CHANNELS_LAST: "{model}{images:with_images} in {memory_format:memory_format}",
    Done.CHECKPOINT_METHOD: "{model}{path:attribute}.gradient_checkpointing_enable()",
    Done.CHECKPOINT_BLOCKS: "{blocks} of {all_blocks} blocks of {model} checkpointed ({block})",
    Done.CHECKPOINT_CALL: "{block} checkpointed where it is called",
    Done.COMPILED: "{model}.compile({arguments})",
    Done.COMPILED_BLOCKS: "{blocks} blocks of {model} compiled ({block})",
    Done.BACKWARD_CAPTURED: "backward captured and compiled",
    Done.STEP_CAPTURED: "whole step captured, with {parameters:plural parameter}",
    Done.LOSS_CHUNKED: "cross_entropy of {classes:,} classes, {rows} rows at a time",
    Done.LOSS_COMPILED: "cross_entropy of {classes:,} classes, compiled",
    Done.NORMS_FOLDED: "{norms:plural batch norm} of {model} folded into convolutions",
    Done.CALLED_IN_PARTS: "{model} called in {parts} parts of the batch",
    Done.INFERENCE_MODE: "{model} called in inference mode",
    Done.HALF_WEIGHTS: "weights of {model} in {dtype}",
    Done.KV_CACHE: "{model}.generate() keeps keys and values",
    Done.STATIC_CACHE: "{model}.generate() keeps keys and values in a cache of a fixed size",
    Done.PADDED_LAYER: "{layer} padded to {width} columns in the product",
    Done.INT8_WEIGHTS: "int8 weights in {layers:plural Linear layer} of {model}",
    Done.INT8_SOME_WEIGHTS: "int8 weights in {layers:plural Linear layer} of {model}; "
    "{exact:plural sensitive layer} kept float32, above all {most_sensitive}, whose own output "
    "would be off by {error_share:percent}",
    Done.FLOAT8_PRODUCTS: "float8 products in {layers:plural Linear layer} of {model}"
    "{rest_in_bfloat16:bfloat16_rest}",
    Done.OUTPUTS_COMPARED: "outputs of the first {batches:batches} off by {error_share:percent} of "
    "their norm",
    Done.TOP_CLASS_COMPARED: "outputs of the first {batches:batches} off by {error_share:percent} "
    "of their norm, the largest column is the same in {same_rows:,} of {rows:plural row}",
    Done.FUNCTION_REWRITTEN: "{function}() rewritten",
}
_BY_HAND: dict[str, str] = {
    ByHand.AFTER_MODEL_MADE: "{cause:then}write after the model is made: {statement}",
    ByHand.BEFORE_MODEL_CALL: "{cause:then}write before the model is called: {statement}",
    ByHand.AROUND_MODEL_CALL: "{cause:then}write around the model's call: with {header}:",
    ByHand.IN_SET_UP: "{cause:then}write where the model is set up: {statement}",
    ByHand.NEAR_LINE: "{cause:then}write near its line {line}: {statement}",
    ByHand.CHUNKED_CROSS_ENTROPY: "line {line} of {file} does not call cross_entropy by its name: "
    "use chunked_cross_entropy there, from ridgeline.fixes.torch_functions",
    ByHand.COMPILED_CROSS_ENTROPY: "line {line} of {file} does not call cross_entropy by its name: "
    "put torch.compile around a function that casts the logits to float32 and calls cross_entropy, "
    "and call that there",
    ByHand.GRADIENT_SCALER: "{cause:then}write around the model's call: with {header}:; before the "
    'loop: scaler = torch.amp.GradScaler("{device}", init_scale={init_scale}); then '
    "scaler.scale(loss).backward(), scaler.unscale_(optimizer) before any clipping, and "
    "scaler.step(optimizer); scaler.update() for optimizer.step()",
    ByHand.LAYOUT_OF_EACH: "one model has convolutions of two and of three dimensions; turn each "
    "one's weight: conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last)",
    ByHand.CHECKPOINT_CALLS: "{cause:then}write where the blocks are called: checkpoint(block, x, "
    "use_reentrant=False)",
    ByHand.COMPILED_AUTOGRAD: "{cause:then}write {flag}, and around the backward: with {header}:",
    ByHand.FOLD_NORMS: "write for each convolution and the batch norm after it, when the weights "
    "are loaded: conv, bn = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, bn), torch.nn.Identity()",
    ByHand.FLOAT8_LAYERS: "{cause:then}write with torchao after the model is made: "
    "convert_to_float8_training(model, module_filter_fn=lambda layer, name: 'head' not in name), "
    "and autocast to bfloat16 around the model's call and the loss; or call float8_linear from "
    "ridgeline.fixes.torch_functions in the layers' forward",
    ByHand.INT8_LAYERS: "{cause:then}write once the weights are loaded, before the first call: "
    "model = torch.ao.quantization.quantize_dynamic(model, {{torch.nn.Linear: "
    "torch.ao.quantization.per_channel_dynamic_qconfig}}); with torchao, which replaces it: "
    "quantize_(model, Int8DynamicActivationInt8WeightConfig())",
    ByHand.CALL_IN_PARTS: "{cause:then}call the model in parts: in_parts(model, x, parts={parts}), "
    "from ridgeline.fixes.torch_functions",
    ByHand.BATCH_SIZE: "{place} {cause}: make that {factor} times as large; the learning rate was "
    "left as it is",
    ByHand.ARGUMENT_BATCH_SIZE: "make {argument} of the program's TrainingArguments {factor} times "
    "as large; the learning rate was left as it is",
    ByHand.PADDED_PRODUCT: "no call of self.{layer} is in the program's own files: write for "
    "logits = {layer}(x): logits = F.linear(x, F.pad({layer}.weight, (0, 0, 0, -V % {multiple})))"
    "[..., :V], or make the vocabulary a multiple of {multiple}",
    ByHand.FUSED_ATTENTION: "{cause:then}in {file}, near line {line}, put "
    "torch.nn.functional.scaled_dot_product_attention in the place of the attention",
    ByHand.STEP_GRAPH: "make the optimizer with capturable=True; take a few steps on a side "
    "stream; then, with batches copied into tensors that stay: graph = torch.cuda.CUDAGraph(); "
    "with torch.cuda.graph(graph): loss = step(model, optimizer, static_batch); and for each batch "
    "static_batch.copy_(batch); graph.replay()",
    ByHand.OPTIMIZER_CLASS: "TrainingArguments(optim=…) has no name for {optimizer}({option}="
    "{value}): give the Trainer optimizer_cls_and_kwargs=(torch.optim.{optimizer}, {{…, "
    '"{option}": {value}}}), with the options it has now',
    ByHand.GIVE_ARGUMENT: "{place:in_place}give {call}(…) {argument}",
    ByHand.GIVE_TRAINER_ARGS: "{place:in_place}give the args of {trainer}(…) {argument}",
    ByHand.GIVE_FLAG: "add {flag} to the command line, which gives the program its settings",
    ByHand.GIVE_LIGHTNING_TRAINER: "{place:in_place}give the Trainer of the program {argument}"
    "{clips:beside_clipping}",
    ByHand.NAME_MODEL: "give the model a name, and write before it is handed to {call}(…) in "
    "{place}: {statement}",
    ByHand.WRITER_FAILED: "{title}: it could not be written ({error})",
    ByHand.NAME_TAKEN: "{file} is a file of yours, or changed by you: see {copy}",
    ByHand.GIVE_KEYWORD: "{cause:colon}in {file}, line {line}: give {call}(…)\n    {name}={value}",
    ByHand.PUT_BESIDE: "{cause:colon}in {file}, line {line}: {where} the statement there, put\n"
    "{text}",
    ByHand.PUT_WITHIN: "{cause:colon}in {file}, line {first}{last:to_line}: put what stands there "
    "into\n    with {header}:",
    ByHand.REPLACE: "{cause:colon}in {file}, line {line}: in place of {before} write\n{text}",
    ByHand.REWRITE: "{cause:colon}in {file}, line {first}{last:to_line}: write\n{text}",
    ByHand.PUT_IMPORT: "{cause:colon}in {file}, with its imports: put\n{text}",
    ByHand.PUT_AT_START: "{cause:colon}in {file}, before its first import: put\n{text}",
    ByHand.PUT_AFTER_IMPORTS: "{cause:colon}in {file}, after its imports: put\n{text}",
    ByHand.FILE_NOT_COPIED: "the changes of {file} are in no copy: {cause}. Put them into the "
    "file itself: patch -p0 < {diff_file}",
    ByHand.SOME_BLOCKS: "only some of the blocks are checkpointed",
    ByHand.BLOCKS_NOT_NAMED: "the program's own files do not call the blocks by a name",
    ByHand.SIZE_UNREADABLE: "cannot be read",
    ByHand.SIZE_OF_OTHER_NAME: "makes its DataLoader by another name, with some batch_size",
    ByHand.SIZE_EXPRESSION: "has batch_size={expression}",
    ByHand.NO_LINE_CALLS_MODEL: "no line of the program's own calls the model",
    ByHand.FILE_UNREADABLE: "{file} cannot be read",
}
_OBSTACLES: dict[str, str] = {
    Obstacle.NOT_PYTHON: "the file cannot be read as Python: {error}",
    Obstacle.MODEL_CALLS_ITSELF: "the model calls itself on line {line}",
    Obstacle.NO_NAMED_CALL: "no model is called by a name on line {line}",
    Obstacle.NO_CALL_OF: "no call of {name} is on line {line}",
    Obstacle.ONE_STATEMENT: "the model's call and the backward are one statement",
    Obstacle.NO_BACKWARD: "no backward follows the model's call in its block",
    Obstacle.CALL_IN_HEADER: "the model is called in the header of the statement on line {line}",
    Obstacle.MADE_IN_OTHER_FILE: "{name} comes from where {function}() is called, in another file",
    Obstacle.NOT_ASSIGNED_BEFORE: "{name} is not assigned in this file before line {line}",
    Obstacle.OUTSIDE_A_CLASS: "{name} is used outside a class",
    Obstacle.NOT_ASSIGNED_IN_CLASS: "{name} is not assigned in its class in this file",
    Obstacle.HANDED_WITHOUT_NAME: "line {line} hands {name} over without a name",
    Obstacle.FAR_AWAY: "it comes from far away",
    Obstacle.FROM_SEVERAL_PLACES: "{function}() gets {name} from several places",
    Obstacle.ASSIGNED_EVERY_PASS: "{name} is assigned anew at every pass, on line {line}",
    Obstacle.NO_PLAIN_BACKWARD: "lines {first} to {last} run no backward of a loss alone",
    Obstacle.SEVERAL_STEPS: "{optimizers} optimizers step in that function",
    Obstacle.GRADIENTS_READ: "gradients are read in that function, which would be scaled ones",
    Obstacle.NO_FREE_NAME: "the program has names for a scaler already",
    Obstacle.NOT_DECODED: "{error}",
    Obstacle.NOT_PARSED: "it cannot be parsed (line {line})",
    Obstacle.NESTED_TOO_DEEPLY: "it is nested too deeply",
    Obstacle.NOT_ENCODED: "it cannot be written in {encoding}",
    Obstacle.OTHER_ENCODING: "the file would be read in another encoding",
    Obstacle.DOES_NOT_COMPILE: "it does not compile: {error}",
    Obstacle.NOT_TOGETHER: "it was not made together with the others",
    Obstacle.OWN_CODE_NOT_PARSED: "its code does not parse",
    Obstacle.CONTINUED_LINE: "its line goes on from the one above",
    Obstacle.PART_OF_STATEMENT: "line {line} is a part of the statement on line {first}",
    Obstacle.SEVERAL_STATEMENTS: "line {line} holds more than one statement",
    Obstacle.NOT_REACHED: "nothing after that statement would be reached",
    Obstacle.STATEMENT_REWRITTEN: "the statement it belongs to is rewritten",
    Obstacle.NO_STATEMENT_IN_IT: "it holds no statement",
    Obstacle.MUST_STAY_FIRST: "a docstring or a __future__ import must stay first",
    Obstacle.OVERLAPS: "it overlaps another edit",
    Obstacle.DIFFERENT_BLOCKS: "lines {first} and {last} are in different blocks",
    Obstacle.NOT_A_BLOCK_END: "line {line} is not the end of a statement of that block",
    Obstacle.LINES_CHANGED: "lines {first} to {last} are not what they were",
    Obstacle.NO_WHOLE_STATEMENTS: "lines {first} to {last} are no whole statements",
    Obstacle.INDENTED_OTHERWISE: "its first line is indented otherwise",
    Obstacle.EDIT_BESIDE: "another edit is put beside one of its statements",
    Obstacle.NOT_BOUND_AT_START: "{names} is not bound at the start of the file",
    Obstacle.NO_IMPORT: "it is no import",
    Obstacle.BOUND_TO_OTHER: "{name} is bound to something else on line {line}",
    Obstacle.NOT_BOUND_AT_TOP: "{name} is not bound at the top level of the file",
    Obstacle.TEXT_NOT_KEPT: "the parser does not give the same text back",
    Obstacle.NO_STATEMENT: "there is no statement on line {line}",
    Obstacle.NO_EXPRESSION: "{expression!r} is no expression",
    Obstacle.NO_NAME: "{name!r} is no name",
    Obstacle.OTHER_VALUE: "another edit gives it {name}={value}",
    Obstacle.LOOKED_UP_CALL: "line {line} looks up what it calls, {call} with these options",
    Obstacle.NOT_ONE_CALL: "there {calls:are_calls} of {call} on line {line}",
    Obstacle.CALL_IN_STRING: "the call is inside a string",
    Obstacle.MAY_BE_IN_STARS: "{name} may be in the {stars}… of the call",
    Obstacle.MAY_BE_BARE: "{name} may be one of the call's bare arguments",
    Obstacle.VALUE_MAY_DO_MORE: "it has {name}={value}, which may do more than give a value",
    Obstacle.VALUE_ON_SEVERAL_LINES: "its value of {name} is written over several lines",
    Obstacle.NOT_THERE_ONCE: "{expression} is {times:there_times}",
    Obstacle.PACKAGE_FILE: "it is the file of a package, which has one name only",
    Obstacle.PACKAGE_DOES_MORE: "{package} imports it and does more than that",
    Obstacle.REACHED_THROUGH_PACKAGE: "line {line} of {importer} reaches it through {package}",
    Obstacle.NO_IMPORT_LEADS_TO_IT: "no import of the script leads to it by a name that can be "
    "followed",
    Obstacle.MORE_THAN_IMPORT: "line {line} of {importer} holds more than its import",
    Obstacle.USED_BY_WHOLE_NAME: "line {line} of {importer} imports it as {name}, which is used by "
    "its whole name",
    Obstacle.OTHER_PATH: "line {line} of {importer} reaches it by another path",
}
TEMPLATES: dict[str, str] = {**_SKIPPED, **_DONE, **_BY_HAND, **_OBSTACLES}
_BESIDE_CLIPPING = "; beside clipping it refuses an optimizer with fused=True"
UNITS: dict[str, Callable[[Any], str]] = {
    "to_line": lambda value: f" to line {value}" if value else "",
    "colon": lambda value: f"{value}: " if value else "",
    "are_calls": lambda value: f"are {value} calls" if value else "is no call",
    "there_times": lambda value: f"there {value} times" if value else "not there",
    "then": lambda value: f"{value}; " if value else "",
    "in_place": lambda value: f"in {value}: " if value else "",
    "attribute": lambda value: f".{value}" if value else "",
    "device": lambda value: "GPU" if value == "cuda" else value.upper(),
    "with_images": lambda value: " and its images" if value else "",
    "memory_format": lambda value: value or "the formats of its convolutions",
    "bfloat16_rest": lambda value: ", bfloat16 in the rest" if value else "",
    "batches": lambda value: "batch" if value == 1 else f"{value} batches",
    "beside_clipping": lambda value: _BESIDE_CLIPPING if value else "",
    "weights_or_scores": lambda value: "weights" if value else "scores",
}
"""How facts are written, by the name of the format."""
