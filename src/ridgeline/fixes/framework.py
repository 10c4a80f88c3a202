"""Changes of a program whose loop is a framework's: said by the arguments of its own settings,
`TrainingArguments(bf16=True)`, `Trainer(precision="bf16-mixed")`, in the user's script.

Where those are made from a mapping, the mapping gets it: `options = {**options, "bf16": True}`.
Where Hugging Face's come from a parser or another place, they are made anew before the trainer
gets them: `args = dataclasses.replace(args, bf16=True)`.
"""

import ast
import re

from msgspec.structs import replace

from ridgeline.fixes import precision
from ridgeline.fixes.fix import EditByHand, Source, find_fix
from ridgeline.fixes.framework_calls import Files, Loop, Site, values
from ridgeline.fixes.framework_settings import Setting, setting, times
from ridgeline.fixes.places import at
from ridgeline.fixes.writing import kinds_at
from ridgeline.records.edit import Edit, Import, Insert, Keyword, Within
from ridgeline.records.trial import Applied
from ridgeline.source.file import Function, calls_in, dotted_name, last_name

_AT_ITS_LINE = ("loader", "optimizer")
"""Groups of changes that are written where the program itself makes the object."""
_BATCH = 8
"""Samples for each device, where nothing is said: Hugging Face's default."""
_CLIPS = ("gradient_clip", "clip_gradients")
"""Lightning clips no gradients in any of its lower precisions where the optimizer is fused: it
raises, in bfloat16 too, where nothing is scaled."""


def of_framework(applied: Applied, source: Source) -> tuple[Edit, ...] | None:
    """The edits; None where no line it was put on is in a framework's loop. Raises NotWritten with
    the argument's name where the settings are made elsewhere."""
    edits: list[Edit] = []
    others: list[str] = []
    for file, line in at(applied):
        files = Files(source, file)
        loop = files.loop(line)
        if loop is None or _at_its_line(applied, source(file) or "", line):
            others.append(f"{file}:{line}")
            continue
        wanted = setting(applied, loop.framework)
        if wanted is None:
            return _handed_over(applied, source, files, loop)
        if loop.framework == "hugging face":
            edits += _arguments(applied, files, loop.trainer, wanted)
        else:
            edits += _precision(applied, source, files, loop.trainer, wanted)
    if not edits:
        return None
    if others:
        edits += find_fix(applied.fix).source_edits(replace(applied, places=tuple(others)), source)
    return tuple(dict.fromkeys(edits))


def _at_its_line(applied: Applied, text: str, line: int) -> bool:
    """The program itself makes the object there, and hands it to the framework."""
    if find_fix(applied.fix).fix.group not in _AT_ITS_LINE:
        return False
    kinds = [one.partition("(")[0] for one in applied.what.split("; ")]
    return bool(kinds_at(text, line, kinds))


def _precision(
    applied: Applied, source: Source, files: Files, trainer: Site | None, wanted: Setting
) -> tuple[Edit, ...]:
    clips = files.mention(*_CLIPS)
    found = _given(trainer, wanted, ("*",)) if trainer is not None and not clips else None
    if found is not None:
        return found
    if applied.fix == "autocast":
        try:  # where the model is called: no less right, only not as the framework says it
            return find_fix(applied.fix).source_edits(applied, source)
        except EditByHand:
            found = _in_step(applied, files) if clips else None
    if found is not None:
        return found
    raise _to_lightning(wanted, files, trainer, clips)


def _to_lightning(wanted: Setting, files: Files, trainer: Site | None, clips: bool) -> EditByHand:
    if trainer is None and files.mention("LightningCLI("):
        return EditByHand(
            f'give LightningCLI(…) trainer_defaults={{"{wanted.name}": {wanted.value}}}'
        )
    where = f"in {trainer.place}: " if trainer is not None else ""
    but = "; beside clipping it refuses an optimizer with fused=True" if clips else ""
    return EditByHand(f"{where}give the Trainer of the program: {wanted.said}{but}")


def _in_step(applied: Applied, files: Files) -> tuple[Edit, ...] | None:
    """The whole of `training_step`, as the trainer's precision would have it."""
    found = [
        (file, node)
        for file, tree in files.trees.items()
        for node in ast.walk(tree.module)
        if isinstance(node, Function) and node.name == "training_step"
    ]
    if len(found) != 1:
        return None
    file, step = found[0]
    body = step.body[1:] if ast.get_docstring(step) is not None else step.body
    if not body or any("backward" in dotted_name(call.func) for call in calls_in(step)):
        return None
    if not _begins_its_line(files.trees[file].text, body[0]):
        return None
    first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    device, _ = precision.said(applied.what)
    header = f'torch.autocast("{device}", dtype=torch.bfloat16)'
    around = Within(
        file=file, first=first, last=last, header=header, why="products on tensor cores"
    )
    return around, Import(file=file, text="import torch")


def _begins_its_line(text: str, statement: ast.stmt) -> bool:
    """Else the header stands before it, `def training_step(self, batch): return …`, perhaps as the
    last of several lines, and a `with` around that line would hold the function."""
    line = re.split(r"\r\n|\r|\n", text)[statement.lineno - 1]
    return len(line) - len(line.lstrip()) == statement.col_offset


def _arguments(
    applied: Applied, files: Files, trainer: Site | None, wanted: Setting
) -> tuple[Edit, ...]:
    """Into the call that makes TrainingArguments; else into what the trainer is given."""
    site = _made(files, trainer)
    if applied.fix == "larger-batch" and not _known_batch(site, applied.what):
        factor, _ = times(applied.what)
        raise EditByHand(
            f"{wanted.name} of the program's TrainingArguments: make that {factor} times as "
            "large; the learning rate was left as it is"
        )
    found = _given(site, wanted, ("output_dir",)) if site is not None else None
    found = found or _anew(trainer, wanted)
    if found is not None:
        return found
    if site is not None:
        raise EditByHand(f"in {site.place}: give {site.name}(…) {wanted.said}")
    if trainer is not None:
        raise EditByHand(f"in {trainer.place}: give the args of {trainer.name}(…) {wanted.said}")
    raise EditByHand(f"give TrainingArguments of the program: {wanted.said}")


def _made(files: Files, trainer: Site | None) -> Site | None:
    """The call of TrainingArguments that the trainer is given, or the only one there is."""
    handed = _handed(trainer)
    if trainer is not None and handed is not None:
        come = values(trainer, handed.id) if isinstance(handed, ast.Name) else [handed]
        calls_ = [one for one in come if isinstance(one, ast.Call)]
        for call in calls_ if len(come) == 1 else ():
            origin = files.origin(trainer.tree, dotted_name(call.func))
            if origin is not None and origin.settles:
                return Site(trainer.file, trainer.tree, call)
    every = list(files.made(lambda origin: origin.settles))
    return every[0] if len(every) == 1 else None


def _handed(trainer: Site | None, name: str = "args", index: int = 1) -> ast.expr | None:
    if trainer is None or any(isinstance(one, ast.Starred) for one in trainer.call.args):
        return None
    named = [one.value for one in trainer.call.keywords if one.arg == name]
    bare = trainer.call.args[index : index + 1]
    return next(iter((*named, *bare)), None)


def _given(site: Site, wanted: Setting, positional: tuple[str, ...]) -> tuple[Edit, ...] | None:
    """To that call; None where it takes it from elsewhere."""
    call = site.call
    has = [one.value for one in call.keywords if one.arg == wanted.name]
    mappings = [one.value for one in call.keywords if one.arg is None]
    if any(not isinstance(one, ast.Constant) for one in has):
        return None
    if has or not mappings:
        if any(isinstance(one, ast.Starred) for one in call.args):
            return None
        if len(call.args) > len(positional) and "*" not in positional:
            return None
        return (
            Keyword(
                file=site.file, line=call.lineno, call=site.name, name=wanted.name,
                value=wanted.value, why=wanted.why, positional=positional,
            ),
        )  # fmt: skip
    mapping = mappings[0]
    if len(mappings) > 1 or not isinstance(mapping, ast.Name):
        return None
    text = f'{mapping.id} = {{**{mapping.id}, "{wanted.name}": {wanted.value}}}'
    return _before(site, mapping.id, text, wanted.why)


def _anew(trainer: Site | None, wanted: Setting) -> tuple[Edit, ...] | None:
    handed = _handed(trainer)
    if trainer is None or not isinstance(handed, ast.Name):
        return None
    text = f"{handed.id} = dataclasses.replace({handed.id}, {wanted.said})"
    put = _before(trainer, handed.id, text, wanted.why)
    return put and (*put, Import(file=trainer.file, text="import dataclasses"))


def _before(site: Site, name: str, text: str, why: str) -> tuple[Edit, ...] | None:
    """None where the name is not one of the function's own: giving it would hide the other."""
    scope = site.tree.scope_of(site.call)
    own = {
        node.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    if isinstance(scope, Function):
        given = scope.args
        own |= {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        own |= {one.arg for one in (given.vararg, given.kwarg) if one is not None}
    if isinstance(scope, ast.ClassDef) or name not in own:
        return None
    line = site.tree.statement_of(site.call).lineno
    return (Insert(file=site.file, line=line, where="before", text=text, why=why),)


def _known_batch(site: Site | None, what: str) -> bool:
    """The call says the number that was made larger: with several GPUs in one process a loader
    has that of all."""
    if site is None:
        return False
    name = "per_device_train_batch_size"
    has = [one.value for one in site.call.keywords if one.arg == name]
    if not has and any(one.arg is None for one in site.call.keywords):
        return False
    size = has[0] if has else ast.Constant(_BATCH)
    return isinstance(size, ast.Constant) and size.value == times(what)[1]


def _handed_over(
    applied: Applied, source: Source, files: Files, loop: Loop
) -> tuple[Edit, ...] | None:
    """A change of a model that no line of the program calls by a name: what would stand after it
    is made stands before it is handed to the trainer."""
    if find_fix(applied.fix).fix.group != "model" or "; " in applied.what:
        return None
    try:
        return find_fix(applied.fix).source_edits(applied, source)
    except EditByHand:
        hugging = loop.framework == "hugging face"
        if loop.inside if hugging else not files.of_lightning(applied.what):
            raise  # another model than the one that is handed over
        site = loop.trainer if hugging else _fit(files, loop)
        model = _handed(site, "model", 0)
        name = model.id if isinstance(model, ast.Name) else "model"
        put = _after_made(applied, files.start, name)
        if put is None or site is None:
            raise
        text, why = put
        edits = _before(site, name, text, why) if isinstance(model, ast.Name) else None
        if edits is None:
            where = f"before it is handed to {site.name}(…) in {site.place}"
            raise EditByHand(f"give the model a name, and write {where}: {text}") from None
        more = [Import(file=site.file, text="import torch")] if "torch." in text else []
        return *edits, *more


def _after_made(applied: Applied, file: str, name: str) -> tuple[str, str] | None:
    """What would be written of a model of that name, and why; None where that is not all."""
    text = f"{name} = made()\n{name}(x)\n"
    try:
        plain = replace(applied, places=(f"{file}:2",))
        edits = find_fix(applied.fix).source_edits(plain, lambda _: text)
    except EditByHand:
        return None
    puts = [edit for edit in edits if isinstance(edit, Insert)]
    others = [edit for edit in edits if not isinstance(edit, Insert | Import)]
    if len(puts) != 1 or puts[0].where != "after" or others:
        return None
    return puts[0].text, puts[0].why


def _fit(files: Files, loop: Loop) -> Site | None:
    """Lightning's trainer gets the model when it starts."""
    if loop.starts is not None:
        return loop.starts
    found = [
        Site(file, tree, call)
        for file, tree in files.trees.items()
        for call in calls_in(tree.module)
        if last_name(call) == "fit" and (call.args or call.keywords)
    ]
    return found[0] if len(found) == 1 else None
