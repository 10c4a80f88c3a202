"""Activations of repeated blocks computed again in the backward."""

import ast
from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.places import at
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.repeated import NONE, repeated
from ridgeline.fixes.writing import after_made
from ridgeline.harness.capture.places import here
from ridgeline.records.edit import Edit, Import, Replace
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, names_in, parsed
from ridgeline.source.program import block_calls

_OWN = "gradient_checkpointing_enable"
"""Of Hugging Face's models, which then leave out the cache a second run would fill twice."""
_WHY = "activations are computed again in the backward"
FIX = Fix(
    id="checkpointing",
    group="model",
    title="activation checkpointing of repeated blocks",
    alters="nothing",
    slot="checkpoint",
    answers=("activation-peak",),
    saves="memory",
    why="Only what goes into each block is kept; the rest is computed again when the backward "
    "comes to it: memory of one block instead of all, for a third more arithmetic.",
    wrong_when="Memory is not what limits the program: a step takes up to a third longer. A block "
    "that counts its calls or keeps something of them counts twice.",
)


def reason_to_skip(ground: Ground) -> str:
    return "" if ground.trains else "nothing trains, so nothing is kept for a backward"


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def lighten(model: Model) -> str:
        inner = model.inner
        if any(getattr(one, "gradient_checkpointing", False) for one in inner.modules()):
            program.found_nothing(FIX.id, "the program has checkpointing already")
            return ""
        own = _of_its_own(torch, inner)
        if own is not None and options.get("blocks") != "half":
            inner.get_submodule(own).gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
            return f"{'.'.join(filter(None, (type(inner).__name__, own)))}.{_OWN}()"
        blocks = repeated(torch, inner)
        fit = [block for block in blocks if not _counts(torch, block)]
        if not fit:
            program.found_nothing(FIX.id, _why(blocks))
            return ""
        chosen = fit[::2] if options.get("blocks") == "half" else fit
        what = f"{len(chosen)} of {len(blocks)} blocks checkpointed ({type(chosen[0]).__name__})"
        seen = _Seen(program, what)
        for block in chosen:
            around(block, FIX.id, lambda forward: _again(torch, seen, forward))
        return what

    program.on_model(FIX.id, lighten)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """At the line that calls the blocks, the last place."""
    if applied.what.endswith(f".{_OWN}()"):
        kind, _, path = applied.what.removesuffix(f".{_OWN}()").partition(".")
        target = f"{{name}}.{path}" if path else "{name}"
        enabled = f"{target}.{_OWN}(gradient_checkpointing_kwargs=dict(use_reentrant=False))"
        return after_made(applied, source, enabled, _WHY, kind)
    words = applied.what.split(" ")
    hint = "write where the blocks are called: checkpoint(block, x, use_reentrant=False)"
    if len(words) < 4 or words[0] != words[2]:
        raise EditByHand(f"only some of the blocks are checkpointed; {hint}")
    kind = applied.what.rpartition("(")[2].rstrip(")")
    seen = list(reversed(at(applied)[1:]))  # none where the blocks ran compiled from the start
    guessed = block_calls(source, at(applied)[0][0], kind) if at(applied) and not seen else []
    for file, line in seen or (guessed if len(guessed) == 1 else ()):
        call = _block_call(source(file), line)
        if call is not None:
            given = ast.unparse(call).partition("(")[2][:-1]
            between = ", " if given else ""
            after = f"checkpoint({dotted_name(call.func)}{between}{given}, use_reentrant=False)"
            name = "from torch.utils.checkpoint import checkpoint"
            return (
                Replace(file=file, line=line, before=ast.unparse(call), after=after, why=_WHY),
                Import(file=file, text=name, why=_WHY),
            )
    raise EditByHand(f"the blocks are not called by a name in the program's own files; {hint}")


def _block_call(text: str | None, line: int) -> ast.Call | None:
    """Of the variable of a loop that the line is in: `for block in self.blocks: x = block(x)`."""
    tree = parsed(text)
    for call in tree.calls_on_line(line) if tree is not None else ():
        loop = tree.loop_of(call) if tree is not None else None
        if isinstance(loop, ast.For) and dotted_name(call.func) in names_in(loop.target):
            return call
    return None


class _Seen:
    """Notes the line that calls the blocks, once."""

    def __init__(self, program: Program, what: str) -> None:
        self._program = program
        self._what = what
        self.done = False

    def note(self) -> None:
        self.done = True
        self._program.did(FIX.id, self._what, here())


def _again(torch: Any, seen: _Seen, forward: Forward) -> Forward:
    from torch.utils.checkpoint import checkpoint

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return forward(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(forward, self, *args, use_reentrant=False, **kwargs)
        if not seen.done:
            seen.note()
        if any(hasattr(one, "get_seq_length") for one in (*args, *kwargs.values())):
            raise RuntimeError("checkpointing is refused: a block fills a cache as it runs")
        versions = [buffer._version for buffer in self.buffers()]
        found = checkpoint(forward, self, *args, use_reentrant=False, **kwargs)
        if versions and versions != [buffer._version for buffer in self.buffers()]:
            raise RuntimeError("checkpointing is refused: a block writes its buffers as it runs")
        return found

    return under


def _of_its_own(torch: Any, model: Any) -> str | None:
    """The path of the part that knows how to checkpoint itself."""
    for name, one in model.named_modules():
        if getattr(one, "supports_gradient_checkpointing", False) and hasattr(one, _OWN):
            return None if _counts(torch, one) else str(name)
    return None


def _counts(torch: Any, block: Any) -> bool:
    """Running statistics would take in each batch twice."""
    kinds = (torch.nn.modules.batchnorm._NormBase,)
    return any(isinstance(one, kinds) and one.track_running_stats for one in block.modules())


def _why(blocks: list[Any]) -> str:
    if not blocks:
        return NONE
    return "its blocks keep running statistics (BatchNorm), which would count every batch twice"
