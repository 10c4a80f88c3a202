"""Edits that several fixes share: keywords of a call, statements after the line that makes a model
or before the line that calls it, and a `with` around the call."""

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ridgeline.fixes.fix import EditByHand, Source
from ridgeline.records.edit import Edit, Import, Insert, Keyword
from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.reason_codes import ByHand, Done
from ridgeline.records.trial import Applied
from ridgeline.source.file import first_line, last_name, parsed
from ridgeline.source.mixed_precision import cast_edits
from ridgeline.source.models import GENERATE, called, loss_edits, made
from ridgeline.source.program import program_files

_GENERATE_ARGUMENTS = ("inputs", "generation_config", "logits_processor", "stopping_criteria")
"""What `generate` of transformers takes by position."""
Facts = Mapping[str, Fact]
_Definition = ast.FunctionDef | ast.ClassDef
Statement = Callable[[Facts, str], str]
"""The statement to insert, from the facts of a target and the name of the model or its input."""


def generate_edits(
    applied: Applied, source: Source, name: str, value: str, why: str
) -> tuple[Edit, ...]:
    """Return the argument for each call of `generate` that the fix was applied to. Where a line
    calls something that calls `generate`, such as a pipeline, raise EditByHand."""
    argument, found = f"{name}={value}", []
    for file, line in applied.lines or (("", 0),):
        tree = parsed(source(file) or "")
        calls = tree.calls_on_line(line) if tree is not None else []
        if not any(last_name(call) == GENERATE for call in calls):
            place = f"{file}:{line}" if file else ""
            raise EditByHand(ByHand.GIVE_ARGUMENT, call=GENERATE, argument=argument, place=place)
        found.append(
            Keyword(
                file=file, line=line, call=GENERATE, name=name, value=value, why=why,
                positional=_GENERATE_ARGUMENTS,
            )
        )  # fmt: skip
    return tuple(dict.fromkeys(found))


def after_made(
    applied: Applied, source: Source, statement: Statement, why: str
) -> tuple[Edit, ...]:
    edits: list[Edit] = []
    for facts, file, line, text in _model_calls(applied, source, statement):
        others = [(str(one), source(str(one)) or "") for one in program_files(source, file)]
        where = made(text, line, str(facts["model"]), others)
        if isinstance(where, Reason):
            code = statement(facts, "model")
            raise EditByHand(ByHand.AFTER_MODEL_MADE, cause=where, statement=code)
        home, put = where.file or file, statement(facts, where.name)
        edits.append(Insert(file=home, line=where.line, where="after", text=put, why=why))
        edits += _torch_import(home, put)
    return tuple(dict.fromkeys(edits))


def before_call(
    applied: Applied, source: Source, statement: Statement, why: str, *, of_input: bool = False
) -> tuple[Edit, ...]:
    """With `of_input` the statement is about the name that the model is called with first. There is
    no edit where the model is called with something that has no name."""
    edits: list[Edit] = []
    for facts, file, line, text in _model_calls(applied, source, statement):
        where = called(text, line, str(facts["model"]))
        if isinstance(where, Reason):
            code = statement(facts, "x")
            raise EditByHand(ByHand.BEFORE_MODEL_CALL, cause=where, statement=code)
        name = where.given[0] if where.given else ""
        if name or not of_input:
            put = statement(facts, name)
            edits.append(Insert(file=file, line=where.first, where="before", text=put, why=why))
            edits += _torch_import(file, put)
    return tuple(dict.fromkeys(edits))


def around_call(applied: Applied, source: Source, why: str) -> tuple[Edit, ...]:
    """Put the model's calls under autocast, and what they return into float32 again."""
    logits_stay = any(one.done.code == Done.LARGE_LOGITS_STAY for one in applied.targets)
    edits: list[Edit] = []
    for facts, file, line, _ in _model_calls(
        applied, source, lambda facts, _: f"with {autocast_header(facts)}:"
    ):
        header, kind = autocast_header(facts), str(facts["model"])
        found = cast_edits(file, source, line, header, why, kind, half=logits_stay)
        if isinstance(found, Reason):
            raise EditByHand(ByHand.AROUND_MODEL_CALL, cause=found, header=header)
        edits += found
    return tuple(dict.fromkeys(edits))


def autocast_header(facts: Facts) -> str:
    return f'torch.autocast("{facts["device"]}", dtype=torch.{facts["dtype"]})'


def cross_entropy_edits(
    applied: Applied, source: Source, name: str, code: str, why: str, by_hand: ByHand
) -> tuple[Edit, ...]:
    """Return the edits that call `name`, which `code` defines, in the place of cross_entropy. Where
    the loss works on some rows at a time, the call says how many."""
    edits: list[Edit] = []
    for target in applied.targets:
        place, facts = target.place, target.done.facts
        if place is None or place.line is None:
            continue
        settings = {"rows": str(facts["rows"])} if "rows" in facts else {}
        text = source(place.file) or ""
        found = loss_edits(place.file, text, place.line, name, code, why, settings)
        if not found:
            raise EditByHand(by_hand, file=place.file, line=place.line)
        edits += found
    return tuple(dict.fromkeys(edits))


def code_of(*names: str) -> str:
    """Return these definitions of `torch_functions.py` and the imports that they use, as they are
    written into the user's source: without comments for our own tools."""
    file = parsed(Path(__file__).with_name("torch_functions.py").read_text(encoding="utf-8"))
    assert file is not None
    body = file.module.body
    wanted = [one for one in body if isinstance(one, _Definition) and one.name in names]
    used = {node.id for one in wanted for node in ast.walk(one) if isinstance(node, ast.Name)}
    imports = [
        one
        for one in body
        if isinstance(one, ast.Import | ast.ImportFrom)
        and any((name.asname or name.name) in used for name in one.names)
    ]
    code = ""
    for statement in imports:
        gap = "" if file.lines[statement.lineno - 2] else "\n"  # the line between two groups
        code += f"{gap}{ast.unparse(statement)}\n"
    code = code.strip()
    for one in wanted:
        first = first_line(one)
        lines = [
            line.partition("  # type: ignore")[0].partition("  # fmt: skip")[0]
            for line in file.lines[first - 1 : one.end_lineno]
        ]
        code += "\n\n\n" + "\n".join(lines)
    return code


def _model_calls(
    applied: Applied, source: Source, statement: Statement
) -> Iterator[tuple[Facts, str, int, str]]:
    """Yield the facts of each model the fix was applied to, with file, line and text of its call.
    Raise EditByHand if no line is known, or a file cannot be read."""
    models = [one for one in applied.targets if "model" in one.done.facts]
    known_lines = False
    for target in models:
        place, facts = target.place, target.done.facts
        if place is None or place.line is None:
            continue
        known_lines = True
        text = source(place.file)
        if text is None:
            raise EditByHand(
                ByHand.NEAR_LINE, cause=because(ByHand.FILE_UNREADABLE, file=place.file),
                line=place.line, statement=statement(facts, "model"),
            )  # fmt: skip
        yield facts, place.file, place.line, text
    if not known_lines:
        code = statement(models[0].done.facts, "model") if models else ""
        cause = because(ByHand.NO_LINE_CALLS_MODEL)
        raise EditByHand(ByHand.IN_SET_UP, cause=cause, statement=code)


def _torch_import(file: str, code: str) -> list[Edit]:
    return [Import(file=file, text="import torch")] if "torch." in code else []
