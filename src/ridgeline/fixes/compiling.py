"""What the ways of compiling a model share."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from ridgeline.fixes.around import dress
from ridgeline.fixes.bounds import speedup_without
from ridgeline.fixes.fix import Source
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.writing import after_made
from ridgeline.records.edit import Edit, Import, Insert
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

PRODUCTS_LEFT_SHARE = 0.8
"""Share of the time of matrix products on a GPU that stays when the program around them is
compiled."""
REARRANGED_PRODUCTS_LEFT_SHARE = 0.25
"""The same share where the compiler may give products another layout or other kernels, as it does
for convolutions and on a CPU. It is a generous guess: a set with torch.compile gained 2.84 × where
products and input took 58 % of the step."""
ANSWERS = ("fusable-chain", "small-kernels", "graph-breaks", "written-attention")


def reason_to_skip(ground: Ground) -> str:
    if not ground.compiler:
        return "nothing here can compile: no C++ compiler, or no Triton"
    return "the program compiles already" if ground.compiled else ""


def bound(ground: Ground, *, other_kernels: bool = False) -> float | None:
    """Return the bound if all of the step goes (launches, passes over memory, Python) except the
    wait for input and a part of the products. `other_kernels` says that the compiler also looks for
    faster products."""
    if ground.products_least_share is None:
        return None
    rearranged = other_kernels or ground.convolutions or ground.device == "cpu"
    left = REARRANGED_PRODUCTS_LEFT_SHARE if rearranged else PRODUCTS_LEFT_SHARE
    return speedup_without(1 - min(left * ground.products_least_share + ground.input_share, 1.0))


def resists(torch: Any, module: Any) -> str:
    """Why it is left as it is; "" where it can be compiled."""
    if isinstance(module, torch.jit.ScriptModule):
        return f"{type(module).__name__} is TorchScript"
    for one in module.modules():
        if hasattr(one, "_orig_mod") or one._compiled_call_impl is not None:
            return "the program compiles its model already"
    if getattr(module.forward, "_torchdynamo_disable", False):
        return f"{type(module).__name__} is kept from compiling by the program"
    return ""


def in_place(torch: Any, module: Any, given: Mapping[str, str | bool]) -> None:
    """As `module.compile()`, which compiles nothing, and says nothing, where the class is torch's
    own: Dynamo steps over torch's files, nn.Sequential's among them. A frame of its own around the
    call, as torch.compile(module) has it, is one it looks at."""
    module.compile(**given)
    if type(module).forward.__module__.partition(".")[0] == "torch":
        inline = import_module("torch._dynamo.external_utils").wrap_inline
        module._compiled_call_impl = torch.compile(inline(module._call_impl), **given)


def statement(kinds: Iterable[str], name: str, given: Mapping[str, str | bool]) -> str:
    """What compiles that object in the user's source, by the names of its classes."""
    own = import_module("torch.nn")
    if not any(hasattr(own, kind) for kind in kinds):
        return f"{name}{call_of(given)}"
    options = call_of(given).removeprefix(".compile(")
    comma = "" if options == ")" else ", "
    return f"{name}.forward = torch.compile({name}.forward{comma}{options}"


def whole(program: Program, fix: str, given: dict[str, str | bool]) -> None:
    """Each outermost module that trains, as a whole, at its next call."""

    def build(model: Model) -> str:
        inner = model.inner
        why = resists(program.torch, inner)
        if why:
            program.found_nothing(fix, why)
            return ""
        in_place(program.torch, inner, given)
        dress(inner)
        return f"{type(inner).__name__}{call_of(given)}"

    program.on_model(fix, build)


def call_of(given: Mapping[str, str | bool]) -> str:
    said = ", ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in given.items()
    )
    return f".compile({said})"


def edits(
    applied: Applied, source: Source, given: dict[str, str | bool], why: str
) -> tuple[Edit, ...]:
    kind = applied.what.partition(".compile")[0]
    return with_torch(after_made(applied, source, statement((kind,), "{name}", given), why, kind))


def with_torch(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """The same, and the import that they need: a script may know torch.nn alone."""
    files = dict.fromkeys(
        one.file for one in edits if isinstance(one, Insert) and "torch." in one.text
    )
    return (*edits, *(Import(file=file, text="import torch") for file in files))
