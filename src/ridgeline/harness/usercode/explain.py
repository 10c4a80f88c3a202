"""Somebody else's exception, as the person who wrote the code should read it."""

import sys
import traceback
from pathlib import Path

import torch

from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError
from ridgeline.harness.usercode.words import first_words


def explain(error: BaseException, doing: str, memory_hint: str = "") -> RidgelineError:
    """Somebody else's exception as one sentence, with the line of their code it came from."""
    if isinstance(error, RidgelineError):
        return error
    words = first_words(error)
    if is_out_of_memory(error):
        return OutOfMemoryError(f"{doing} ran out of memory: {words[:200]}", memory_hint)
    place = user_line(error)
    hint = ""
    if isinstance(error, TypeError) and "required" in words and "argument" in words:
        hint = "name a function without arguments that builds the model"
    return TargetError(
        f"{doing} raised {type(error).__name__}{f' at {place}' if place else ''}"
        f"{f': {words[:300]}' if words else ''}",
        hint if doing.startswith("building") else "",
    )


def is_out_of_memory(error: BaseException) -> bool:
    words = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in words
        or "not enough memory" in words
    )


def user_line(error: BaseException) -> str:
    """file:line of the innermost frame that is neither ours nor torch's."""
    ours = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        foreign = "site-packages" in path or path.startswith(("<", ours))
        if not foreign and "importlib" not in path and not path.startswith(sys.prefix):
            return f"{Path(path).name}:{frame.lineno}"
    return ""
