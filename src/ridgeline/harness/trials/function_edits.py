"""Replaces the code of a user's function: the new code is compiled from the patched text of its
file, under its own name and file."""

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.trial import FunctionEdit


def rewrite(program: Program, fix: str, edits: tuple[FunctionEdit, ...]) -> None:
    """Replace the functions at the model's first training call, when all files have been imported.
    The fix counts as applied at each function that was replaced."""
    left = list(edits)

    def swap(model: Any) -> Reason | None:
        for edit in list(left):
            if _replace_code(edit):
                left.remove(edit)
                done = because(Done.FUNCTION_REWRITTEN, function=edit.name)
                program.did(fix, done, f"{edit.file}:{edit.line}")
        if not left:
            return None
        place = f"{os.path.basename(left[0].file)}:{left[0].line}"
        return because(Skip.FUNCTION_NOT_FOUND, function=left[0].name, place=place)

    program.on_model(fix, swap)


def _replace_code(edit: FunctionEdit) -> bool:
    done = False
    for function in found_at(edit):
        code = _code_at(compile(edit.text, function.__code__.co_filename, "exec"), edit)
        if code is not None and code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
            done = True
    return done


def found_at(edit: FunctionEdit) -> Iterator[types.FunctionType]:
    """Return the function, wherever the module of its file or a class in it holds it."""
    path = os.path.realpath(edit.file)
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if held is None or not _same(getattr(module, "__file__", None), path):
            continue
        for value in list(held.values()):
            inside = vars(value).values() if isinstance(value, type) else (value,)
            for one in inside:
                function = one.__func__ if isinstance(one, staticmethod | classmethod) else one
                function = getattr(function, "__wrapped__", function)
                if isinstance(function, types.FunctionType) and _is(function.__code__, edit, path):
                    yield function


def _same(file: Any, path: str) -> bool:
    return isinstance(file, str) and os.path.realpath(file) == path


def _is(code: types.CodeType, edit: FunctionEdit, path: str) -> bool:
    return (
        code.co_firstlineno == edit.line
        and code.co_name == edit.name
        and os.path.realpath(code.co_filename) == path
    )


def _code_at(code: types.CodeType, edit: FunctionEdit) -> types.CodeType | None:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            if const.co_name == edit.name and const.co_firstlineno == edit.new_line:
                return const
            inner = _code_at(const, edit)
            if inner is not None:
                return inner
    return None
