"""Where a program's own file is: the script among the words of torchrun, a module below here."""

import os
import shlex
from pathlib import Path

from msgspec.structs import replace

from ridgeline.records.run import Target

MODULE = "torch.distributed.run"
_NO_SCRIPT = ("-m", "--module", "--no-python", "--no_python")


def behind(target: Target) -> int | None:
    """Where the launcher's script stands among the target's arguments; None: there is no launcher,
    or it was given a module."""
    if target.kind != "module" or target.name != MODULE:
        return None
    for place, word in enumerate(target.arguments):
        if word in _NO_SCRIPT:
            return None
        if word.endswith(".py") and os.path.isfile(word):
            return place
    return None


def typed(target: Target) -> str:
    """As a person types it; "" where there is no launcher."""
    if target.kind != "module" or target.name != MODULE:
        return ""
    return shlex.join(["torchrun", *target.arguments])


def script_of(target: Target) -> Target | None:
    """The script that trains, with its own arguments; None where it is a module or code."""
    if target.kind == "script":
        return target
    place = behind(target)
    if place is None:
        return None
    name, *arguments = target.arguments[place:]
    return Target(kind="script", name=name, arguments=tuple(arguments))


def module_file(target: Target) -> Path | None:
    """Of `-m package.train`, where it lies below this folder; its parents are not imported."""
    if target.kind != "module":
        return None
    base = Path(*target.name.split("."))
    places = (base.with_suffix(".py"), base / "__main__.py")
    return next((place for place in places if place.is_file()), None)


def named_file(target: Target) -> Path:
    """Return the file after which the written files are named, and beside which they are put: the
    script or the module. For code, and for a module outside the current folder, return a name in
    the current folder."""
    script, module = script_of(target), module_file(target)
    if script is not None:
        return Path(script.name)
    if module is None:
        return Path("code.py" if target.kind == "code" else f"{target.name.split('.')[-1]}.py")
    if module.name == "__main__.py":
        return module.with_name(f"{module.parent.name}.py")
    return module


def with_script(target: Target, name: str) -> Target:
    """The same with another script in its place."""
    place = behind(target)
    if place is None:
        return replace(target, name=name)
    words = list(target.arguments)
    words[place] = name
    return replace(target, arguments=tuple(words))


def recorded(target: Target, ours: list[str]) -> list[str]:
    """What Python is given to run it under `ridgeline run`: `ours` are its options. Behind a
    launcher that is each of its processes."""
    place = behind(target)
    if place is not None:
        before, after = target.arguments[:place], target.arguments[place:]
        return ["-m", MODULE, *before, "-m", "ridgeline", "run", *ours, "--", *after]
    typed = {"module": ["-m", target.name], "code": ["-c", target.name]}
    words = typed.get(target.kind, [target.name])
    return ["-m", "ridgeline", "run", *ours, "--", *words, *target.arguments]
