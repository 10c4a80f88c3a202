"""Puts torch.compile on a model from outside: what the fixes that compile share."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.fix import Source, speedup_without
from ridgeline.fixes.model_edits import Facts, after_made, before_call
from ridgeline.fixes.model_forward import rewrap_compiled
from ridgeline.fixes.program import Model, Program, is_replicated
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import Applied

PRODUCTS_LEFT_SHARE = 0.8
"""Share of the time of matrix products on a GPU that stays when the program around them is
compiled."""
REARRANGED_PRODUCTS_LEFT_SHARE = 0.25
"""The same share where the compiler may give products another layout or other kernels, as it does
for convolutions and on a CPU. It is a generous guess: a set with torch.compile gained 2.84 × where
products and input took 58 % of the step."""
ANSWERS = ("fusable-chain", "small-kernels", "graph-breaks", "written-attention")
STEP_MARK = "torch.compiler.cudagraph_mark_step_begin()"
STEP_MARK_WHY = "the last step's outputs may be overwritten"
Options = Mapping[str, str | bool]
"""Keyword arguments of torch.compile."""


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.compiler:
        return because(Skip.NO_COMPILER)
    return because(Skip.ALREADY_SET, setting="torch.compile") if ground.compiled else None


def reason_to_skip_graphs(ground: Ground) -> Reason | None:
    """The same for options that use CUDA graphs or choose among GPU kernels by timing."""
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    return because(Skip.SHAPES_CHANGE) if ground.shapes_change else reason_to_skip(ground)


def bound(ground: Ground, *, other_kernels: bool = False) -> float | None:
    """Return the bound if all of the step goes (launches, passes over memory, Python) except the
    wait for input and a part of the products. `other_kernels` says that the compiler also looks for
    faster products. A compiler makes kernels of its own for products with a vector, as in decoding,
    and puts a fused operator in the place of attention that is written out."""
    if ground.products_least_share is None:
        return None
    rearranged = (
        other_kernels
        or ground.convolutions
        or ground.device == "cpu"
        or not ground.trains
        or "written-attention" in ground.findings
    )
    left = REARRANGED_PRODUCTS_LEFT_SHARE if rearranged else PRODUCTS_LEFT_SHARE
    return speedup_without(1 - min(left * ground.products_least_share + ground.input_share, 1.0))


def obstacle(torch: Any, module: Any) -> Reason | None:
    """Return why the module cannot be compiled; None if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return because(Skip.TORCHSCRIPT, model=type(module).__name__)
    if is_replicated(module):
        return because(Skip.REPLICATED)
    for one in module.modules():
        if hasattr(one, "_orig_mod") or one._compiled_call_impl is not None:
            return because(Skip.ALREADY_SET, setting="torch.compile")
    if getattr(module.forward, "_torchdynamo_disable", False):
        return because(Skip.COMPILE_DISABLED, model=type(module).__name__)
    return None


def compile_in_place(torch: Any, module: Any, options: Options) -> None:
    """Compile the module's next call as `module.compile()` does. That compiles nothing, without a
    word, if the class is torch's own: Dynamo steps over torch's files, nn.Sequential's among them.
    A frame of its own around the call, as torch.compile(module) has it, is one it looks at."""
    module.compile(**options)
    if type(module).forward.__module__.partition(".")[0] == "torch":
        inline = import_module("torch._dynamo.external_utils").wrap_inline
        module._compiled_call_impl = torch.compile(inline(module._call_impl), **options)


def compile_whole(program: Program, fix: str, options: Options) -> None:
    """Compile each outermost module that trains, as a whole, at its next call."""

    def build(model: Model) -> Reason:
        reason = obstacle(program.torch, model.inner)
        if reason is not None:
            return reason
        compile_in_place(program.torch, model.inner, options)
        rewrap_compiled(model.inner)
        mode, arguments = str(options.get("mode", "")), _arguments(options)
        done = because(Done.COMPILED, model=model.name, arguments=arguments, mode=mode)
        off = _tf32_is_off(program)
        return replace(done, facts={**done.facts, "tf32": False}) if off else done

    program.on_model(fix, build)


def _tf32_is_off(program: Program) -> bool:
    """Return whether a GPU's products run in full float32. A framework that turns TF32 on where it
    compiles is then told not to."""
    try:
        precision = program.torch.get_float32_matmul_precision()
    except RuntimeError:  # set through torch's newer names
        return False
    return program.device == "cuda" and precision == "highest"


def compile_with_graphs(program: Program, fix: str, mode: str, *, graphs: bool = True) -> None:
    """Compile whole models in a mode that only a GPU has; with `graphs` it uses CUDA graphs."""
    if program.device != "cuda":
        program.found_nothing(fix, because(Skip.NO_GPU))
        return
    compile_whole(program, fix, {"mode": mode})
    if graphs:
        # Without it a second forward before the backward of the first keeps both outputs' memory.
        program.on_step(program.torch.compiler.cudagraph_mark_step_begin)


def statement(kind: str, name: str, arguments: str = "") -> str:
    """Return the statement that compiles the object of that name, of class `kind`, in the user's
    source."""
    if not hasattr(import_module("torch.nn"), kind):
        return f"{name}.compile({arguments})"
    options = f", {arguments}" if arguments else ""
    return f"{name}.forward = torch.compile({name}.forward{options})"


def compile_edits(applied: Applied, source: Source, why: str) -> tuple[Edit, ...]:
    def compiled(facts: Facts, name: str) -> str:
        return statement(str(facts["model"]), name, str(facts["arguments"]))

    return after_made(applied, source, compiled, why)


def step_mark_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    return before_call(applied, source, lambda facts, name: STEP_MARK, STEP_MARK_WHY)


def _arguments(options: Options) -> str:
    return ", ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in options.items()
    )
