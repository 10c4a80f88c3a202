"""Fixes of a program whose loop or model is a framework's, written as arguments of its own settings
in the user's script: `TrainingArguments(bf16=True)`, `Trainer(precision="bf16-mixed")`,
`Accelerator(mixed_precision="bf16")`.

If Hugging Face's settings come from a parser or another place, they are made anew before the
trainer gets them: `args = dataclasses.replace(args, bf16=True)`.

Which framework a line belongs to follows from the names that the program's files import from it,
through classes of its own, and from the call that makes the trainer.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.fixes.catalog import persistent_workers
from ridgeline.fixes.fix import EditByHand, Source, find_fix
from ridgeline.fixes.model_edits import autocast_header
from ridgeline.records.edit import Edit, Import, Insert, Keyword, Replace, Within
from ridgeline.records.facts import Fact, Place
from ridgeline.records.reason_codes import ByHand
from ridgeline.records.trial import Applied
from ridgeline.source.file import Function, SourceFile, calls_in, dotted_name, last_name, parsed
from ridgeline.source.program import ProgramTexts, program_files

Framework = Literal["hugging face", "lightning"]
_GROUPS_MADE_BY_PROGRAM = ("loader", "optimizer")
"""Groups of fixes that are written where the program itself makes the object."""
_DEFAULT_BATCH_SIZE = 8
"""Hugging Face's default of samples for each device."""
_CLIPS = ("gradient_clip", "clip_gradients")
"""Arguments that clip gradients. With a fused optimizer Lightning raises if it must clip in one of
its lower precisions, even in bfloat16, where nothing is scaled."""


_HUGGING_FACE = ("transformers", "trl", "sentence_transformers", "setfit")
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_ACCELERATE = ("accelerate",)
_MODULES_OF_ALL = (*_HUGGING_FACE, *_LIGHTNING, *_ACCELERATE)
_STARTS: dict[str, Framework] = {"train": "hugging face", "fit": "lightning"}
_PARSERS = ("HfArgumentParser(", "TrlParser(")
"""Calls that make TrainingArguments from the command line."""
_MODULES = ("LightningModule", "LightningDataModule")
_NO_ARGUMENTS = ("ModelConfig", "ScriptArguments")
"""Configurations of trl that are not TrainingArguments, as its other ones are."""


class Setting(Struct, frozen=True, kw_only=True):
    """An argument of a framework's settings that says the same as a fix."""

    name: str
    value: str
    """The value as Python writes it."""
    why: str
    keeps_tf32_off: bool = False
    """Whether TF32 was off in the trial, and the framework would turn it on with this argument."""

    @property
    def argument(self) -> str:
        return f"{self.name}={self.value}"

    @property
    def flag(self) -> str:
        """The argument as it is typed for a parser that makes TrainingArguments."""
        return f"--{self.name} {ast.literal_eval(self.value)}"


_PRODUCTS = "products in 16 bits"
_HUGGING_FACE_SETTINGS = {
    "autocast": ("bf16", "True", _PRODUCTS),
    "autocast-fp16": ("fp16", "True", _PRODUCTS),
    "tf32": ("tf32", "True", "tensor cores for float32 products"),
    "compile": ("torch_compile", "True", "fuses operators and leaves Python out"),
    "compile-reduce-overhead": ("torch_compile_mode", "{mode}", "one launch for many kernels"),
    "compile-max-autotune": ("torch_compile_mode", "{mode}", "products chosen by timing"),
    "fused-optimizer": ("optim", '"adamw_torch_fused"', "one pass over parameters and moments"),
    "checkpointing": ("gradient_checkpointing", "True", "activations are computed again"),
    "loader-workers": (
        "dataloader_num_workers", "{value}", "batches are made while the step runs",
    ),
    "pin-memory": ("dataloader_pin_memory", "True", "the GPU fetches batches by itself"),
    "persistent-workers": (
        "dataloader_persistent_workers", "True", persistent_workers.FIX.edit_why,
    ),
    "prefetch": (
        "dataloader_prefetch_factor", "{value}", "a longer queue evens out slow batches",
    ),
    "larger-batch": (
        "per_device_train_batch_size", "{batch_size}",
        "larger steps; the learning rate is as it was",
    ),
}  # fmt: skip
"""For the id of each fix, the argument, its value and why. A value in braces is a fact of the
target."""
_LIGHTNING_SETTINGS = {
    "autocast": ("precision", '"bf16-mixed"', _PRODUCTS),
    "autocast-fp16": ("precision", '"16-mixed"', _PRODUCTS),
}
_TF32_OFF = "beside torch_compile the Trainer would turn TF32 on, which was not measured"
_SET_UP_SETTINGS = {
    "Accelerator": {
        "autocast": ("mixed_precision", '"bf16"', _PRODUCTS),
        "autocast-fp16": ("mixed_precision", '"fp16"', _PRODUCTS),
    },
    "Fabric": _LIGHTNING_SETTINGS,
}
"""The settings for each class whose object sets the model up in a loop of the program's own."""
_ACCELERATOR_ORDER = ("device_placement", "split_batches", "mixed_precision")
"""What an Accelerator takes by position."""


def setting(applied: Applied, framework: Framework) -> Setting | None:
    """Return the framework's argument for the fix; None if it has none. Raise EditByHand if it has
    one for another thing: an optimizer that it makes itself and fuses under no name of its own."""
    hugging_face = framework == "hugging face"
    table = _HUGGING_FACE_SETTINGS if hugging_face else _LIGHTNING_SETTINGS
    row = table.get(applied.fix)
    facts = applied.targets[0].done.facts if applied.targets else {}
    whole = all(one.done.facts.get("path") == "" for one in applied.targets)
    if row is None or (applied.fix == "checkpointing" and not whole):
        if hugging_face and applied.fix == "foreach-optimizer":
            raise _other_optimizer(facts)
        return None
    made = {one.done.facts.get("call") for one in applied.targets}
    if applied.fix == "fused-optimizer" and made != {"AdamW"}:
        raise _other_optimizer(facts)
    name, value, why = row
    if value == "{mode}":
        value = f'"{facts["mode"]}"'
    elif value.startswith("{"):
        value = str(facts[value[1:-1]])
    off = name.startswith("torch_compile") and facts.get("tf32") is False
    return Setting(name=name, value=value, why=why, keeps_tf32_off=off)


def _other_optimizer(facts: Mapping[str, Fact]) -> EditByHand:
    optimizer, option, value = facts["call"], facts["option"], facts["value"]
    return EditByHand(ByHand.OPTIMIZER_CLASS, optimizer=optimizer, option=option, value=value)


class Origin(Struct, frozen=True):
    """Says where a class comes from, such as transformers and Trainer; for a class of the program's
    own the class that it is made from."""

    module: str
    name: str

    @property
    def framework(self) -> Framework:
        return "hugging face" if self.module in _HUGGING_FACE else "lightning"

    @property
    def trains(self) -> bool:
        return self.name.endswith("Trainer")

    @property
    def settles(self) -> bool:
        """Whether a Hugging Face trainer takes it as its `args`."""
        if self.module == "trl" and self.name.endswith("Config"):
            return self.name not in _NO_ARGUMENTS
        return self.name.endswith("TrainingArguments")


class Site(Struct, frozen=True):
    """A call in a file of the program."""

    file: str
    tree: SourceFile
    call: ast.Call

    @property
    def name(self) -> str:
        return last_name(self.call)

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}, line {self.call.lineno}"


class Loop(Struct, frozen=True):
    """The framework's loop that a line is in."""

    framework: Framework
    trainer: Site | None
    """The call that makes the trainer; None if it cannot be told which."""
    starts: Site | None = None
    """The call `trainer.fit(model)` if the line is that."""
    inside: bool = False
    """Whether the line is in a class that the framework calls."""


class Files:
    """The files of a program, from one of them on."""

    def __init__(self, source: Source, start: str) -> None:
        paths = [Path(start), *program_files(source, start)]
        texts = {path.resolve(): (str(path), source(str(path)) or "") for path in reversed(paths)}
        found = [(name, parsed(text)) for name, text in reversed(texts.values())]
        self.trees = {name: tree for name, tree in found if tree is not None}
        self.start = start

    def loop(self, line: int) -> Loop | None:
        """Return the loop of that line of the first file; None if the loop is the program's own."""
        tree = self.trees.get(self.start)
        if tree is None or not any(_imports(one) for one in self.trees.values()):
            return None
        for call in tree.calls_on_line(line):
            if (found := self._started(tree, call)) is not None:
                return found
        for node in ast.walk(tree.module):
            if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
                origin = self.origin(tree, node.name)
                if origin is not None and (origin.trains or origin.name in _MODULES):
                    return Loop(origin.framework, self.only_trainer(origin.framework), inside=True)
        return None

    def _started(self, tree: SourceFile, call: ast.Call) -> Loop | None:
        """Return the loop that the call starts, as `trainer.train()` and `trainer.fit(model)` do:
        there the user's own lines end."""
        if not isinstance(call.func, ast.Attribute):
            return None
        starts, owner = Site(self.start, tree, call), call.func.value
        if isinstance(owner, ast.Call):
            origin = self.origin(tree, dotted_name(owner.func))
            if origin is None or not origin.trains:
                return None
            return Loop(origin.framework, Site(self.start, tree, owner), starts)
        name = dotted_name(owner)
        made = [
            (origin, Site(self.start, tree, value))
            for value in _values(tree, name)
            if isinstance(value, ast.Call)
            and (origin := self.origin(tree, dotted_name(value.func))) is not None
            and origin.trains
        ]
        if made:
            whole = made[0][0].framework
            return Loop(whole, made[0][1] if len(made) == 1 else None, starts)
        which = _STARTS.get(call.func.attr)
        if which is None or not name or "model" in name.lower() or not self._imports_of(which):
            return None
        return Loop(which, self.only_trainer(which), starts)

    def mention(self, *words: str) -> bool:
        return any(word in tree.text for tree in self.trees.values() for word in words)

    def is_lightning_module(self, name: str) -> bool:
        origin = self.origin(self.trees[self.start], name)
        return origin is not None and origin.name == "LightningModule"

    def made(self, wanted: Callable[[Origin], bool]) -> Iterator[Site]:
        """Yield the calls, in all files, that make something of a wanted origin."""
        for file, tree in self.trees.items():
            for call in calls_in(tree.module):
                origin = self.origin(tree, dotted_name(call.func))
                if origin is not None and wanted(origin):
                    yield Site(file, tree, call)

    def origin(
        self, tree: SourceFile, name: str, seen: frozenset[tuple[int, str]] = frozenset()
    ) -> Origin | None:
        first, _, rest = name.partition(".")
        module, bound = _imports(tree, every=True).get(first, ("", ""))
        last = rest.rpartition(".")[2] or bound or first
        if module in _MODULES_OF_ALL and not self._hidden(tree, name):
            return Origin(module, last)
        for other in self.trees.values():
            if (id(other), last) in seen:
                continue
            for base in _classes(other).get(last, ()):
                found = self.origin(other, base, seen | {(id(other), last)})
                if found is not None:
                    return found
        return None

    @staticmethod
    def _hidden(tree: SourceFile, name: str) -> bool:
        """Return whether a class of the file has the imported name and is not made from it."""
        own = _classes(tree).get(name)
        return own is not None and name not in own

    def only_trainer(self, framework: Framework) -> Site | None:
        """Return the only trainer of the program that has a name."""
        found = [
            site
            for site in self.made(lambda one: one.trains and one.framework == framework)
            if not isinstance(next(site.tree.parents(site.call)), ast.Attribute)
        ]
        return found[0] if len(found) == 1 else None

    def _imports_of(self, framework: Framework) -> bool:
        wanted = _HUGGING_FACE if framework == "hugging face" else _LIGHTNING
        return any(
            module in wanted
            for tree in self.trees.values()
            for module, _ in _imports(tree).values()
        )


def values(site: Site, name: str) -> list[ast.expr]:
    """Return what the name is given in the function or module that the call stands in."""
    scope = site.tree.scope_of(site.call)
    return [v for v in _values(site.tree, name) if site.tree.scope_of(v) is scope]


def _values(tree: SourceFile, name: str) -> list[ast.expr]:
    found = []
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name and any(dotted_name(one) == name for one in targets):
                found.append(node.value)
    return found


@lru_cache(maxsize=256)
def _imports(tree: SourceFile, every: bool = False) -> dict[str, tuple[str, str]]:
    """Return, by the name that an import has here, the outermost module and the name there ("" for
    the module itself): those of frameworks, or all."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree.module):
        if isinstance(node, ast.Import):
            for one in node.names:
                module = one.name.partition(".")[0]
                found[one.asname or module] = (module, "")
        elif isinstance(node, ast.ImportFrom):
            module = "." if node.level else (node.module or "").partition(".")[0]
            for one in node.names:
                found[one.asname or one.name] = (module, one.name)
    return {name: pair for name, pair in found.items() if every or pair[0] in _MODULES_OF_ALL}


@lru_cache(maxsize=256)
def _classes(tree: SourceFile) -> dict[str, list[str]]:
    """Return the file's own classes, each with the names of its bases."""
    nodes = [node for node in ast.walk(tree.module) if isinstance(node, ast.ClassDef)]
    return {node.name: [dotted_name(base) for base in node.bases] for node in nodes}


def of_framework(applied: Applied, source: Source) -> tuple[Edit, ...] | None:
    """Return the edits; None if no line that the fix was applied to is in a framework's loop. Raise
    EditByHand with the argument's name if the settings are made elsewhere."""
    if applied.fix == "tf32":
        return _tf32(applied, source)
    set_up = _set_up(applied, source)
    if set_up is not None:
        return set_up
    edits: list[Edit] = []
    others: list[Place] = []
    for file, line in applied.lines:
        files = Files(source, file)
        loop = files.loop(line)
        if loop is None or _made_on_line(applied, source(file) or "", line):
            others.append(Place(file, line))
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
        left = tuple(
            one for one in applied.targets
            if one.place is not None and Place(one.place.file, one.place.line) in others
        )  # fmt: skip
        edits += find_fix(applied.fix).source_edits(replace(applied, targets=left), source)
    return tuple(dict.fromkeys(edits))


def _tf32(applied: Applied, source: Source) -> tuple[Edit, ...] | None:
    """Return the edits of Hugging Face's arguments; None if one statement of torch's says the same,
    as it does everywhere else. Beside `torch_compile` the Trainer sets TF32 by torch's newer names,
    with which that statement does not mix."""
    start = next(iter(source.files), None) if isinstance(source, ProgramTexts) else None
    if start is None:
        return None
    files = Files(source, str(start))
    wanted = setting(applied, "hugging face")
    if wanted is None or not any(files.made(lambda one: one.settles)):
        return None
    try:
        return _arguments(applied, files, files.only_trainer("hugging face"), wanted)
    except EditByHand:
        return None


def _set_up(applied: Applied, source: Source) -> tuple[Edit, ...] | None:
    """Return the edit of the only Accelerator or Fabric of the program if it set the model up; None
    if there is no such one, or it takes the argument from elsewhere."""
    names = {str(one.done.facts.get("set_up_by", "")) for one in applied.targets}
    (name, *others) = names - {""} or {""}
    row = _SET_UP_SETTINGS.get(name, {}).get(applied.fix)
    if row is None or others or not applied.lines:
        return None
    files = Files(source, applied.lines[0][0])
    sites = list(files.made(lambda one: one.name == name))
    if len(sites) != 1 or (applied.fix == "autocast-fp16" and not _scales_itself(files)):
        return None
    wanted = Setting(name=row[0], value=row[1], why=row[2])
    return _given(sites[0], wanted, _ACCELERATOR_ORDER if name == "Accelerator" else ())


def _scales_itself(files: Files) -> bool:
    """Return whether every backward is run by the object that scales the loss, as in
    `accelerator.backward(loss)`, and no gradient is clipped by torch's own function, which would
    see it scaled."""
    calls = [call for tree in files.trees.values() for call in calls_in(tree.module)]
    runs = [call for call in calls if last_name(call) == "backward"]
    return all(call.args for call in runs) and not files.mention("nn.utils")


def _made_on_line(applied: Applied, text: str, line: int) -> bool:
    """Return whether the program itself makes the object on that line, and hands it to the
    framework."""
    if find_fix(applied.fix).fix.group not in _GROUPS_MADE_BY_PROGRAM:
        return False
    tree = parsed(text)
    names = {last_name(call) for call in tree.calls_on_line(line)} if tree is not None else set()
    return any(one.done.facts.get("call") in names for one in applied.targets)


def _precision(
    applied: Applied, source: Source, files: Files, trainer: Site | None, wanted: Setting
) -> tuple[Edit, ...]:
    clips = files.mention(*_CLIPS)
    found = _given(trainer, wanted, ()) if trainer is not None and not clips else None
    if found is not None:
        return found
    if applied.fix == "autocast":
        try:  # around the model's call: as right, only not the framework's own way
            return find_fix(applied.fix).source_edits(applied, source)
        except EditByHand:
            found = _in_step(applied, files) if clips else None
    if found is not None:
        return found
    raise _to_lightning(wanted, files, trainer, clips)


def _to_lightning(wanted: Setting, files: Files, trainer: Site | None, clips: bool) -> EditByHand:
    if trainer is None and files.mention("LightningCLI("):
        value = ast.literal_eval(wanted.value)
        return EditByHand(ByHand.GIVE_FLAG, flag=f"--trainer.{wanted.name}={value}")
    place = trainer.place if trainer is not None else ""
    argument = wanted.argument
    return EditByHand(ByHand.GIVE_LIGHTNING_TRAINER, argument=argument, place=place, clips=clips)


def _in_step(applied: Applied, files: Files) -> tuple[Edit, ...] | None:
    """Put all of `training_step` under autocast, as the trainer's precision would."""
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
    header = autocast_header(applied.targets[0].done.facts)
    around = Within(file=file, first=first, last=last, header=header, why="products in 16 bits")
    return around, Import(file=file, text="import torch")


def _begins_its_line(text: str, statement: ast.stmt) -> bool:
    """Return whether nothing stands before the statement on its line. In `def training_step(self,
    batch): return …` a `with` around the line would hold the function."""
    line = re.split(r"\r\n|\r|\n", text)[statement.lineno - 1]
    return len(line) - len(line.lstrip()) == statement.col_offset


def _arguments(
    applied: Applied, files: Files, trainer: Site | None, wanted: Setting
) -> tuple[Edit, ...]:
    """Edit the call that makes TrainingArguments, or else what the trainer is given."""
    site = _made(files, trainer)
    facts = applied.targets[0].done.facts
    if applied.fix == "larger-batch" and not _known_batch(site, facts["before"]):
        factor, argument = facts["factor"], wanted.name
        raise EditByHand(ByHand.ARGUMENT_BATCH_SIZE, argument=argument, factor=factor)
    found = _given(site, wanted, ("output_dir",)) if site is not None else None
    found = found or _anew(trainer, wanted)
    if found is not None:
        return found
    if site is None and files.mention(*_PARSERS):
        raise EditByHand(ByHand.GIVE_FLAG, flag=wanted.flag)
    if site is not None:
        raise EditByHand(
            ByHand.GIVE_ARGUMENT, call=site.name, argument=wanted.argument, place=site.place
        )
    if trainer is not None:
        raise EditByHand(
            ByHand.GIVE_TRAINER_ARGS, trainer=trainer.name, argument=wanted.argument,
            place=trainer.place,
        )  # fmt: skip
    raise EditByHand(
        ByHand.GIVE_ARGUMENT, call="TrainingArguments", argument=wanted.argument, place=""
    )


def _made(files: Files, trainer: Site | None) -> Site | None:
    """Return the call of TrainingArguments that the trainer is given, or the only one there is."""
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
    """Give the argument to the call; return None if the call takes it from elsewhere."""
    call = site.call
    mappings = [one for one in call.keywords if one.arg is None]
    has = [one.value for one in call.keywords if one.arg == wanted.name]
    if len(mappings) > 1 or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if len(call.args) > len(positional):
        return None
    has += [one for name, one in zip(positional, call.args, strict=False) if name == wanted.name]
    if not all(_only_reads(one) for one in has):
        return None
    pairs = [(wanted.name, wanted.value, wanted.why)]
    if wanted.keeps_tf32_off and not mappings and all(one.arg != "tf32" for one in call.keywords):
        pairs.append(("tf32", "False", _TF32_OFF))
    return tuple(
        Keyword(
            file=site.file, line=call.lineno, call=site.name, name=name, value=value, why=why,
            positional=positional,
        )
        for name, value, why in pairs
    )  # fmt: skip


def _only_reads(value: ast.expr) -> bool:
    """Return whether nothing is lost if another value stands there: `args.bf16`, but not
    `choose()`."""
    return value.lineno == value.end_lineno and not any(calls_in(value))


def _anew(trainer: Site | None, wanted: Setting) -> tuple[Edit, ...] | None:
    """Make the arguments anew that the trainer is given by a name."""
    handed = _handed(trainer)
    name = dotted_name(handed) if handed is not None else ""
    if trainer is None or not name:
        return None
    more = f", tf32=bool({name}.tf32)" if wanted.keeps_tf32_off else ""
    text = f"{name} = dataclasses.replace({name}, {wanted.argument}{more})"
    put = _before(trainer, name, text, wanted.why) or _after_only(trainer, name, text, wanted.why)
    return put and (*put, Import(file=trainer.file, text="import dataclasses"))


def _after_only(site: Site, name: str, text: str, why: str) -> tuple[Edit, ...] | None:
    """Insert a statement after the only one of the module that assigns the name."""
    module = site.tree.module
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    if len(found) != 1 or site.tree.scope_of(found[0]) is not module:
        return None
    statement = site.tree.statement_of(found[0])
    if not isinstance(statement, ast.Assign):
        return None
    return (Insert(file=site.file, line=statement.lineno, where="after", text=text, why=why),)


def _before(site: Site, name: str, text: str, why: str) -> tuple[Edit, ...] | None:
    """Insert a statement before the one with the call. Return None if the name is not one of the
    function's own: to assign it would hide the other. An attribute hides nothing."""
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
    if isinstance(scope, ast.ClassDef) or ("." not in name and name not in own):
        return None
    line = site.tree.statement_of(site.call).lineno
    return (Insert(file=site.file, line=line, where="before", text=text, why=why),)


def _known_batch(site: Site | None, before: Fact) -> bool:
    """Return whether the call gives the size that was made larger. With several GPUs in one process
    a loader has the size of all."""
    if site is None:
        return False
    name = "per_device_train_batch_size"
    has = [one.value for one in site.call.keywords if one.arg == name]
    if not has and any(one.arg is None for one in site.call.keywords):
        return False
    size = has[0] if has else ast.Constant(_DEFAULT_BATCH_SIZE)
    return isinstance(size, ast.Constant) and size.value == before


def _handed_over(
    applied: Applied, source: Source, files: Files, loop: Loop
) -> tuple[Edit, ...] | None:
    """Return the edits of a model that no line of the program calls by a name: what would stand
    after the model is made stands before it is handed to the trainer."""
    done = applied.targets[0].done
    alike = all(one.done == done for one in applied.targets)
    if find_fix(applied.fix).fix.group != "model" or not alike:
        return None
    try:
        return find_fix(applied.fix).source_edits(applied, source)
    except EditByHand:
        hugging = loop.framework == "hugging face"
        if loop.inside if hugging else not files.is_lightning_module(str(done.facts.get("model"))):
            raise  # another model than the one that is handed over
        site = loop.trainer if hugging else _fit(files, loop)
        model = _handed(site, "model", 0)
        name = model.id if isinstance(model, ast.Name) else "model"
        put = _after_made(applied, files.start, name)
        if put is None or site is None:
            raise
        text, why = put
        if isinstance(model, ast.Name):
            edits = _before(site, name, text, why)
        else:
            edits = _named_first(site, model, text, why)
        if edits is None:
            raise EditByHand(
                ByHand.NAME_MODEL, call=site.name, place=site.place, statement=text
            ) from None
        more = [Import(file=site.file, text="import torch")] if "torch." in text else []
        return *edits, *more


def _named_first(
    site: Site, model: ast.expr | None, text: str, why: str
) -> tuple[Edit, ...] | None:
    """Give a model that is made where it is handed over, as in `fit(Net())`, the name `model`
    first, and let `text` follow. Return None if the name is taken, or if another call of that
    statement runs before the model is made: it may draw random numbers."""
    tree = site.tree
    statement = tree.statement_of(site.call)
    names = {node.id for node in ast.walk(tree.module) if isinstance(node, ast.Name)}
    simple = isinstance(statement, ast.Assign | ast.Expr | ast.Return)
    if not isinstance(model, ast.Call) or not simple or "model" in names:
        return None
    around = list(tree.parents(model))
    around = around[: around.index(statement)]
    if not all(isinstance(one, ast.Call | ast.Attribute | ast.keyword) for one in around):
        return None
    inside, begins = set(calls_in(model)), (model.lineno, model.col_offset)
    for call in calls_in(statement):
        before = (call.lineno, call.col_offset) < begins
        if before and call not in around and call not in inside:
            return None
    made = ast.unparse(model)
    return (
        Insert(
            file=site.file, line=statement.lineno, where="before", text=f"model = {made}\n{text}",
            why=why,
        ),
        Replace(file=site.file, line=model.lineno, before=made, after="model", why="made above"),
    )  # fmt: skip


def _after_made(applied: Applied, file: str, name: str) -> tuple[str, str] | None:
    """Return what would be written after a model of that name is made, and why; None if more would
    be written elsewhere."""
    text = f"{name} = made()\n{name}(x)\n"
    try:
        target = replace(applied.targets[0], place=Place(file, 2))
        plain = replace(applied, targets=(target,))
        edits = find_fix(applied.fix).source_edits(plain, lambda _: text)
    except EditByHand:
        return None
    puts = [edit for edit in edits if isinstance(edit, Insert)]
    others = [edit for edit in edits if not isinstance(edit, Insert | Import)]
    if len(puts) != 1 or puts[0].where != "after" or others:
        return None
    return puts[0].text, puts[0].why


def _fit(files: Files, loop: Loop) -> Site | None:
    """Return the call that starts Lightning's trainer, which gets the model there."""
    if loop.starts is not None:
        return loop.starts
    calls = [
        Site(file, tree, call)
        for file, tree in files.trees.items()
        for call in calls_in(tree.module)
        if last_name(call) == "fit" and (call.args or call.keywords)
    ]
    return calls[0] if len(calls) == 1 else None
