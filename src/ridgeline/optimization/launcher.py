"""Finds out where the file of a program is: the script among the arguments of torchrun, or a module
below the current folder."""

import os
import shlex
from pathlib import Path

from msgspec.structs import replace

from ridgeline.records.run import Target

MODULE = "torch.distributed.run"
_NO_SCRIPT = ("-m", "--module", "--no-python", "--no_python")


def script_place(target: Target) -> int | None:
    """Return where the launcher's script stands among the target's arguments; None if there is no
    launcher, or if it was given a module."""
    if target.kind != "module" or target.name != MODULE:
        return None
    for place, word in enumerate(target.arguments):
        if word in _NO_SCRIPT:
            return None
        if word.endswith(".py") and os.path.isfile(word):
            return place
    return None


def launcher_command(target: Target) -> str:
    """Return the command as a person types it; "" if there is no launcher."""
    if target.kind != "module" or target.name != MODULE:
        return ""
    return shlex.join(["torchrun", *target.arguments])


def script_of(target: Target) -> Target | None:
    """Return the script that trains, with its own arguments; None if it is a module or code."""
    if target.kind == "script":
        return target
    place = script_place(target)
    if place is None:
        return None
    name, *arguments = target.arguments[place:]
    return Target(kind="script", name=name, arguments=tuple(arguments))


def module_file(target: Target) -> Path | None:
    """Return the file of `-m package.train` if it lies below the current folder. Its parent
    packages are not imported."""
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
    """Return the target with another script in the place of its own."""
    place = script_place(target)
    if place is None:
        return replace(target, name=name)
    words = list(target.arguments)
    words[place] = name
    return replace(target, arguments=tuple(words))


def recorded(target: Target, options: list[str]) -> list[str]:
    """Return Python's arguments that run a target under `ridgeline run` with these options. Behind
    a launcher each of its processes runs so."""
    place = script_place(target)
    if place is not None:
        before, after = target.arguments[:place], target.arguments[place:]
        return ["-m", MODULE, *before, "-m", "ridgeline", "run", *options, "--", *after]
    typed = {"module": ["-m", target.name], "code": ["-c", target.name]}
    words = typed.get(target.kind, [target.name])
    return ["-m", "ridgeline", "run", *options, "--", *words, *target.arguments]
