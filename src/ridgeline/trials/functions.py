"""A function of the user's run from other source: compiled from the patched text of its file, under
its own name and file, and put in the place of the old code."""

import types
from typing import Any

from ridgeline.changes.program import Model
from ridgeline.records.trial import FunctionEdit


def rewritten(edit: FunctionEdit, model: Model) -> str:
    """In every module of the model whose forward it is; "" where there is none."""
    done = 0
    seen: set[int] = set()
    for module in model.module.modules():
        function = getattr(type(module), edit.name, None)
        code = getattr(function, "__code__", None)
        if code is None or id(function) in seen or not _is(code, edit):
            continue
        seen.add(id(function))
        found = _code_at(compile(edit.text, edit.file, "exec"), edit)
        if found is None or found.co_freevars != code.co_freevars:
            continue
        assert isinstance(function, types.FunctionType)
        function.__code__ = found
        done += 1
    return f"{edit.name}() at line {edit.line} rewritten" if done else ""


def _is(code: Any, edit: FunctionEdit) -> bool:
    return bool(code.co_filename == edit.file and code.co_firstlineno == edit.line)


def _code_at(code: types.CodeType, edit: FunctionEdit) -> types.CodeType | None:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            if const.co_name == edit.name and const.co_firstlineno == edit.new_line:
                return const
            inner = _code_at(const, edit)
            if inner is not None:
                return inner
    return None
