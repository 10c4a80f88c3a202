"""`%load_ext ridgeline`, then `%%ridgeline` on a cell: its code under `ridgeline.profile`."""

import shlex
from typing import Any

from ridgeline.integrations.block import profile

_USAGE = "%%ridgeline [--steps N] [--trace-steps N] [--python] [--full] [--quiet] [NAME]"


def load_ipython_extension(shell: Any) -> None:
    def ridgeline(line: str, cell: str) -> None:
        """Profile this cell: what limits it, where each step goes."""
        with options(line):
            shell.run_cell(cell).raise_error()

    ridgeline.__doc__ = f"{ridgeline.__doc__}\n\n{_USAGE}"
    shell.register_magic_function(ridgeline, magic_kind="cell", magic_name="ridgeline")


def options(line: str) -> profile:
    """The magic's words as `profile` takes them."""
    words = shlex.split(line)
    given: dict[str, Any] = {}
    name = "cell"
    while words:
        word = words.pop(0)
        if word in ("--steps", "--trace-steps"):
            if not words or not words[0].isdigit():
                raise ValueError(f"{word} needs a number: {_USAGE}")
            given[word[2:].replace("-", "_")] = int(words.pop(0))
        elif word in ("--python", "--full", "--quiet"):
            given[word[2:]] = True
        elif word.startswith("-"):
            raise ValueError(f"{word} is not known: {_USAGE}")
        else:
            name = word
    return profile(name, **given)
