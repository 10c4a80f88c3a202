"""Activations of repeated blocks computed again in the backward."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.fixes.catalog.compile_regional import repeated_blocks
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_edits import Facts, after_made
from ridgeline.fixes.model_forward import Forward, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.harness.capture.places import user_line
from ridgeline.records.edit import Edit, Import, Replace
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.file import dotted_name, names_in, parsed
from ridgeline.source.program import block_calls

_METHOD = "gradient_checkpointing_enable"
"""A method of Hugging Face's models. They then leave out the cache, which a second run would fill
twice."""
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


def reason_to_skip(ground: Ground) -> Reason | None:
    return None if ground.trains else because(Skip.DOES_NOT_TRAIN)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch, half = program.torch, options.get("blocks") == "half"

    def checkpoint_blocks(model: Model) -> Reason:
        inner = model.inner
        if any(getattr(one, "gradient_checkpointing", False) for one in inner.modules()):
            return because(Skip.ALREADY_SET, setting="checkpointing")
        path = _path_of_method(torch, inner)
        if path is not None and not half:
            inner.get_submodule(path).gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
            return because(Done.CHECKPOINT_METHOD, model=model.name, path=path)
        blocks = repeated_blocks(torch, inner)
        fit = [block for block in blocks if not _keeps_statistics(torch, block)]
        if not fit:
            return because(Skip.RUNNING_STATISTICS if blocks else Skip.NO_REPEATED_BLOCKS)
        chosen = fit[::2] if half else fit
        block_class = type(chosen[0]).__name__
        located: list[str] = []

        def locate() -> None:
            if not located:
                located.append(user_line())
                program.did(FIX.id, because(Done.CHECKPOINT_CALL, block=block_class), located[0])

        for block in chosen:
            wrap_forward(block, FIX.id, lambda forward: _checkpointed(torch, locate, forward))
        return because(
            Done.CHECKPOINT_BLOCKS, model=model.name, block=block_class, blocks=len(chosen),
            all_blocks=len(blocks),
        )  # fmt: skip

    program.on_model(FIX.id, checkpoint_blocks)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    codes = {one.done.code for one in applied.targets}
    if Done.CHECKPOINT_METHOD in codes:
        return after_made(applied, source, _enable, _WHY)
    facts = next(one.done.facts for one in applied.targets if "blocks" in one.done.facts)
    if facts["blocks"] != facts["all_blocks"]:
        raise EditByHand(ByHand.CHECKPOINT_CALLS, cause=because(ByHand.SOME_BLOCKS))
    for file, line in _block_lines(applied, source, str(facts["block"])):
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
    raise EditByHand(ByHand.CHECKPOINT_CALLS, cause=because(ByHand.BLOCKS_NOT_NAMED))


def _enable(facts: Facts, name: str) -> str:
    part = f"{name}.{facts['path']}" if facts["path"] else name
    return f"{part}.{_METHOD}(gradient_checkpointing_kwargs=dict(use_reentrant=False))"


def _block_lines(applied: Applied, source: Source, block: str) -> list[tuple[str, int]]:
    """Return the lines that were seen to call the blocks, the latest first. If none was seen, as
    when the blocks ran compiled from the start, return the only line that does so in the source."""
    calls = [one for one in applied.targets if one.done.code == Done.CHECKPOINT_CALL]
    seen = [*reversed(Applied(fix=FIX.id, targets=tuple(calls)).lines)]
    if seen or not applied.lines:
        return seen
    guessed = block_calls(source, applied.lines[0][0], block)
    return guessed if len(guessed) == 1 else []


def _block_call(text: str | None, line: int) -> ast.Call | None:
    """Return the call, on that line, of the variable of a loop around it: the `block(x)` of
    `for block in self.blocks: x = block(x)`."""
    tree = parsed(text)
    for call in tree.calls_on_line(line) if tree is not None else ():
        loop = tree.loop_of(call) if tree is not None else None
        if isinstance(loop, ast.For) and dotted_name(call.func) in names_in(loop.target):
            return call
    return None


def _checkpointed(torch: Any, locate: Callable[[], None], forward: Forward) -> Forward:
    from torch.utils.checkpoint import checkpoint

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return forward(self, *args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(forward, self, *args, use_reentrant=False, **kwargs)
        locate()
        if any(hasattr(one, "get_seq_length") for one in (*args, *kwargs.values())):
            raise RuntimeError("checkpointing is refused: a block fills a cache as it runs")
        versions = [buffer._version for buffer in self.buffers()]
        found = checkpoint(forward, self, *args, use_reentrant=False, **kwargs)
        if versions and versions != [buffer._version for buffer in self.buffers()]:
            raise RuntimeError("checkpointing is refused: a block writes its buffers as it runs")
        return found

    return under


def _path_of_method(torch: Any, model: Any) -> str | None:
    """Return the path of the part that has a method to checkpoint itself."""
    for name, one in model.named_modules():
        if getattr(one, "supports_gradient_checkpointing", False) and hasattr(one, _METHOD):
            return None if _keeps_statistics(torch, one) else str(name)
    return None


def _keeps_statistics(torch: Any, block: Any) -> bool:
    """Return whether the block keeps running statistics, which would count each batch twice."""
    kinds = (torch.nn.modules.batchnorm._NormBase,)
    return any(isinstance(one, kinds) and one.track_running_stats for one in block.modules())
