"""Edits inside a statement: a keyword of a call, and an expression replaced by another one.

A keyword is added in the layout that the call has, or its value is changed. A `**` of the call may
give it as well: `**options` becomes `**{**options, "num_workers": 2}`, where the later one counts.
"""

import ast
import keyword as python
import re

import libcst as cst

from ridgeline.records.edit import Keyword, Replace
from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing.draft import (
    DEEPER,
    WIDTH,
    Asked,
    Draft,
    Note,
    Rank,
    Splice,
    comment,
    marked,
)
from ridgeline.source.editing.tree import Cannot, Spot, Tree, called_name, expression_shape, own
from ridgeline.source.file import aliases

_ADAM = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")

POSITIONAL: dict[str, tuple[str, ...]] = {
    "DataLoader": (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
        *("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
        *("multiprocessing_context", "generator"),
    ),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Adadelta": ("params", "lr", "rho", "eps", "weight_decay", "foreach"),
    "Adafactor": ("params", "lr", "beta2_decay", "eps", "d", "weight_decay"),
    "Adagrad": (
        *("params", "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
        "foreach",
    ),
    "Adamax": ("params", "lr", "betas", "eps", "weight_decay", "foreach"),
    "ASGD": (
        *("params", "lr", "lambd", "alpha", "t0", "weight_decay", "foreach", "maximize"),
        *("differentiable", "capturable"),
    ),
    "LBFGS": ("params", "lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change"),
    "Muon": ("params", "lr", "weight_decay", "momentum", "nesterov"),
    "NAdam": (
        *("params", "lr", "betas", "eps", "weight_decay", "momentum_decay"),
        "decoupled_weight_decay",
    ),
    "RAdam": ("params", "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
    "RMSprop": (
        *("params", "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "capturable"),
        *("foreach", "maximize", "differentiable"),
    ),
    "Rprop": ("params", "lr", "etas", "step_sizes"),
    "SGD": ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "SparseAdam": ("params", "lr", "betas", "eps", "maximize"),
    "autocast": ("device_type",),  # torch.cuda.amp's takes `enabled` first: no more is known
    "checkpoint": ("function", "*"),
    "compile": ("model",),
    "cross_entropy": ("input", "target", "weight", "size_average", "ignore_index", "reduce"),
    "CrossEntropyLoss": ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    "cuda": ("device", "non_blocking"),
    "GradScaler": ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval"),
    "to": ("device",),  # of a tensor it may also be a dtype, or another tensor
    "TrainingArguments": ("output_dir",),
    "zero_grad": ("set_to_none",),
    "scaled_dot_product_attention": (
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
}
"""The parameters that calls take by position, in order: what a bare argument is. A name that is not
in its tuple is taken by keyword only; `*` takes any number."""


_STRINGS = (cst.FormattedString, cst.TemplatedString)
_READS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict,
    ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred, ast.keyword,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_COMPUTED = (cst.Call, cst.Subscript)
"""What is called in `getattr(torch.optim, name)(…)` and `OPTIMIZERS[name](…)`: with other options
the program calls something else."""
_ONLY_READ = ("bool", "cpu_count", "float", "get", "getattr", "int", "len", "max", "min", "round")
"""Functions that only read: nothing is lost if they are not called any more."""

_SIMPLE = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Dict)
_GAP = re.compile(r"(?:\s|\\|#[^\r\n]*)*")
_ATOMS = (
    *(cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.SimpleString),
    *(cst.FormattedString, cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp),
)
_ROOMY = (cst.Arg, cst.Assign, cst.AugAssign, cst.Return, cst.Expr)
"""Nodes in which any expression can stand without parentheses."""
_NEVER_BARE = (cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp, cst.Await)
_TARGETS = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)
_NAMED = (cst.Param, cst.FunctionDef, cst.ClassDef, cst.ImportAlias, cst.AsName, cst.NameItem)
WAS_LINES = " (was {} lines)"
"""Part of a comment that says how far the lines below have moved."""
_Match = tuple[cst.BaseExpression, cst.CSTNode]


def keyword(edit: Keyword, draft: Draft) -> bool:
    """Plan the edit; return False if the call has the keyword already."""
    expression_shape(edit.value)
    if not edit.name.isidentifier() or python.iskeyword(edit.name):
        raise Cannot(Obstacle.NO_NAME, name=edit.name)
    try:
        spot, call = _found(edit, draft)
    except Cannot:
        if _moved(edit, draft):
            return False
        raise
    given = _given(edit, call)
    if given is not None:
        return _changed(edit, draft, spot, given)
    # by its end: a chain of calls begins where its first call does
    end = draft.tree.span(call)[1]
    asked = draft.calls.setdefault(end, Asked(call, spot.statement))
    for name, value, _ in asked.keywords:
        if name == edit.name and value != edit.value:
            raise Cannot(Obstacle.OTHER_VALUE, name=name, value=value)
    asked.keywords.append((edit.name, edit.value, edit.why))
    return True


def _found(edit: Keyword, draft: Draft) -> tuple[Spot, cst.Call]:
    spot = draft.tree.at(edit.line)
    here = [node for node, _ in own(spot.part) if isinstance(node, cst.Call)]
    here = [node for node in here if _is_on(edit.line, draft, node)]
    calls = [node for node in here if _is_named(edit, draft, node)]
    if not calls and any(isinstance(node.func, _COMPUTED) for node in here):
        raise Cannot(Obstacle.LOOKED_UP_CALL, line=edit.line, call=edit.call)
    if len(calls) != 1:
        raise Cannot(Obstacle.NOT_ONE_CALL, calls=len(calls), call=edit.call, line=edit.line)
    start, end = draft.tree.span(calls[0])
    for node, _ in own(spot.part):
        if isinstance(node, _STRINGS):
            first, last = draft.tree.span(node)
            if first < start and end < last:
                raise Cannot(Obstacle.CALL_IN_STRING)
    return spot, calls[0]


def _is_on(line: int, draft: Draft, call: cst.Call) -> bool:
    first, last = draft.tree.lines_of(call)
    return first <= line <= last


def _is_named(edit: Keyword, draft: Draft, call: cst.Call) -> bool:
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value == edit.call
    if not isinstance(call.func, cst.Name):
        return False
    name = call.func.value
    return name == edit.call or aliases(draft.tree.text).get(name) == edit.call


def _moved(edit: Keyword, draft: Draft) -> bool:
    """Return whether a call of that name has the keyword and our comment, so that only its line has
    moved."""
    note = comment(edit.why, draft.encoding)
    if all(found.value != note for found in draft.tree.comments.values()):
        return False
    wanted = expression_shape(edit.value)
    for statement in draft.tree.statements():
        if not marked(draft.tree, statement, note):
            continue
        for node, _ in own(statement.node):
            if isinstance(node, cst.Call) and _is_named(edit, draft, node):
                values = [one.value for one in _named(node, edit.name)]
                codes = [draft.tree.module.code_for_node(value) for value in values]
                if any(expression_shape(code) == wanted for code in codes):
                    return True
    return False


def _given(edit: Keyword, call: cst.Call) -> cst.Arg | cst.DictElement | None:
    """Return the argument that gives the keyword's value now, or None."""
    for one in _named(call, edit.name):
        return one
    stars = [argument.star for argument in call.args if argument.star]
    if "*" in stars or len(stars) > 1:
        raise Cannot(Obstacle.MAY_BE_IN_STARS, name=edit.name, stars=stars[0])
    bare = [a for a in call.args if a.keyword is None and not a.star]
    order = edit.positional or POSITIONAL.get(edit.call, ())
    if edit.name in order and order.index(edit.name) < len(bare):
        return bare[order.index(edit.name)]
    if len(bare) > len(order) and "*" not in order:
        raise Cannot(Obstacle.MAY_BE_BARE, name=edit.name)
    return None


def _named(call: cst.Call, name: str) -> list[cst.Arg | cst.DictElement]:
    """Return the arguments of a name, also those in a `**{…}` that stands in the call."""
    found: list[cst.Arg | cst.DictElement] = []
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            found.append(argument)
        if argument.star == "**" and isinstance(argument.value, cst.Dict):
            found += [one for one in _certain(argument.value) if _key(one) == name]
    return found


def _certain(given: cst.Dict) -> list[cst.DictElement]:
    """Return the items of a dictionary that no `**` after them may give once more."""
    found: list[cst.DictElement] = []
    for one in given.elements:
        found = [*found, one] if isinstance(one, cst.DictElement) else []
    return found


def _key(one: cst.DictElement) -> object:
    return one.key.evaluated_value if isinstance(one.key, cst.SimpleString) else None


def _changed(edit: Keyword, draft: Draft, spot: Spot, argument: cst.Arg | cst.DictElement) -> bool:
    code = draft.tree.module.code_for_node(argument.value)
    if expression_shape(code) == expression_shape(edit.value):
        return False
    inner = re.sub(r"\s+", " ", code.strip())
    if not _only_reads(code):
        raise Cannot(Obstacle.VALUE_MAY_DO_MORE, name=edit.name, value=inner)
    start, end = draft.tree.span(argument.value)
    if draft.tree.line_at(start) != draft.tree.line_at(end):
        raise Cannot(Obstacle.VALUE_ON_SEVERAL_LINES, name=edit.name)
    draft.splices.append(Splice(start=start, end=end, text=edit.value, rank=Rank.TEXT))
    line = draft.tree.line_at(start)
    why = f"{edit.why} (was {inner})"
    draft.notes.append(Note(spot.statement, line, why, len(edit.value) - (end - start)))
    return True


def _only_reads(code: str) -> bool:
    """Return whether an expression only reads, so that nothing is lost if it is not computed any
    more."""
    for node in ast.walk(ast.parse(f"({code}\n)", mode="eval").body):
        if isinstance(node, ast.Call):
            if called_name(ast.unparse(node.func)) not in _ONLY_READ:
                return False
        elif not isinstance(node, _READS):
            return False
    return True


def arguments(draft: Draft, asked: Asked) -> list[Splice]:
    tree, call = draft.tree, asked.call
    close = tree.span(call)[1] - 1
    pairs = [f"{name}={value}" for name, value, _ in asked.keywords]
    if not call.args:
        _note_all(draft, asked, close, ", ".join(pairs))
        return [_piece(close, ", ".join(pairs))]
    options = [argument for argument in call.args if argument.star == "**"]
    if options:
        return _among(draft, asked, options[0])
    last = call.args[-1]
    start, end = tree.span(last)
    comma = isinstance(last.comma, cst.Comma)
    after = _skipped(tree.text, end) + 1 if comma else end
    if _alone(tree, call):
        ended = tree.line_at(after)
        if ended < tree.line_at(close) and "\\" not in tree.text[after : tree.start_of(ended + 1)]:
            return _own_lines(draft, asked, comma, after)
        if not comma:
            lead = f",{tree.newline(ended)}{tree.indent(tree.line_at(start))}{DEEPER}"
            _note_all(draft, asked, end, pairs[-1])
            return [_piece(end, "".join(lead + pair for pair in pairs))]
    joined = f" {', '.join(pairs)}," if comma else f", {', '.join(pairs)}"
    _note_all(draft, asked, after, joined)
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar and not last.keyword:
        return [_piece(start, "("), _piece(end, ")" + joined)]
    return [_piece(after, joined)]


def _among(draft: Draft, asked: Asked, options: cst.Arg) -> list[Splice]:
    """Merge the keywords into `**options`, which may give them too: the last one counts."""
    start, end = draft.tree.span(options.value)
    before, after = ("{**", "") if isinstance(options.value, _SIMPLE) else ("{**(", ")")
    after += "".join(f', "{name}": {value}' for name, value, _ in asked.keywords) + "}"
    _note_all(draft, asked, end, before + after)
    return [_piece(start, before), _piece(end, after)]


def _alone(tree: Tree, call: cst.Call) -> bool:
    """Return whether the last argument has a line to itself, as the one before it does."""
    starts = [tree.span(argument)[0] for argument in call.args[-2:]]
    lines = [tree.line_at(start) for start in starts]
    if tree.text[tree.start_of(lines[-1]) : starts[-1]].strip():
        return False
    before = tree.text[tree.start_of(lines[0]) : starts[0]].strip()
    return len(call.args) <= 2 or (lines[0] != lines[-1] and not before)


def _own_lines(draft: Draft, asked: Asked, comma: bool, after: int) -> list[Splice]:
    tree = draft.tree
    ended = tree.line_at(after)
    offset = tree.start_of(ended) + len(tree.line(ended))
    newline = tree.newline(ended)
    indent = tree.indent(tree.line_at(tree.span(asked.call.args[-1])[0]))
    lead = f"{newline}{indent}{DEEPER}"
    out = [] if comma else [_piece(after, ",")]
    text = ""
    for at, (name, value, why) in enumerate(asked.keywords):
        ends = "," if comma or at < len(asked.keywords) - 1 else ""
        pair, note = f"{name}={value}{ends}", comment(why, draft.encoding)
        if len(indent.expandtabs()) + len(pair) + 2 + len(note) <= WIDTH:
            text += f"{lead}{pair}  {note}"
        else:
            text += f"{lead}{note}{lead}{pair}"
    return [*out, Splice(start=offset, end=offset, text=text, rank=Rank.LINES)]


def _note_all(draft: Draft, asked: Asked, offset: int, text: str) -> None:
    """Note the reason of each keyword; the first note gets the whole growth, since growths are
    added up."""
    line = draft.tree.line_at(offset)
    for at, (_, _, why) in enumerate(asked.keywords):
        draft.notes.append(Note(asked.statement, line, why, 0 if at else len(text)))


def _piece(offset: int, text: str) -> Splice:
    return Splice(start=offset, end=offset, text=text, rank=Rank.TEXT)


def _skipped(text: str, offset: int) -> int:
    found = _GAP.match(text, offset)
    return found.end() if found else offset


def replace(edit: Replace, draft: Draft) -> bool:
    """Plan the edit; return False if the new expression stands there already."""
    spot = draft.tree.at(edit.line)
    before, after = _matches(draft, spot, edit.before), _matches(draft, spot, edit.after)
    new = [draft.tree.span(node) for node, _ in after]
    bare = [pair for pair in before if not _inside(draft.tree.span(pair[0]), new)]
    if after and not bare:
        return False
    if len(bare) != 1:
        raise Cannot(Obstacle.NOT_THERE_ONCE, expression=edit.before, times=len(bare))
    node, parent = bare[0]
    start, end = draft.tree.span(node)
    text = _fitted(edit.after, node, parent)
    if start and _joins(draft.tree.text[start - 1]) and _joins(text[0]):
        text = " " + text
    if _joins(draft.tree.text[end : end + 1]) and _joins(text[-1]):
        text += " "
    draft.splices.append(Splice(start=start, end=end, text=text, rank=Rank.TEXT))
    was = draft.tree.line_at(end) - draft.tree.line_at(start) + 1
    why = edit.why if was == text.count("\n") + 1 else edit.why + WAS_LINES.format(was)
    line = draft.tree.line_at(end)
    draft.notes.append(Note(spot.statement, line, why, len(text) - (end - start)))
    return True


def _matches(draft: Draft, spot: Spot, code: str) -> list[_Match]:
    wanted = expression_shape(code)
    kind = type(cst.parse_expression(f"({code}\n)"))
    return [
        (node, parent)
        for node, parent in own(spot.part)
        if isinstance(node, cst.BaseExpression)
        and type(node) is kind
        and _is_value(node, parent)
        and expression_shape(draft.tree.module.code_for_node(node)) == wanted
    ]


def _is_value(node: cst.BaseExpression, parent: cst.CSTNode) -> bool:
    """Return whether a node is a value, not the name of an attribute, a keyword or a target."""
    if isinstance(parent, cst.Attribute):
        return node is not parent.attr
    if isinstance(parent, cst.Arg):
        return node is not parent.keyword
    if isinstance(parent, _TARGETS):
        return node is not parent.target
    if isinstance(parent, _NAMED):
        return node is not getattr(parent, "name", None)
    return True


def _inside(span: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def _fitted(code: str, node: cst.BaseExpression, parent: cst.CSTNode) -> str:
    """Return the new code, in parentheses if it may need them."""
    code = code.strip()
    made = cst.parse_expression(f"({code}\n)")
    if "\n" in code:
        return f"({code})"
    if isinstance(made, _ATOMS) or len(made.lpar) > 1 or node.lpar:
        return code
    if isinstance(parent, _ROOMY) and not isinstance(made, _NEVER_BARE):
        return code
    return f"({code})"


def _joins(character: str) -> bool:
    return character.isalnum() or character in {"_", '"', "'"} if character else False
