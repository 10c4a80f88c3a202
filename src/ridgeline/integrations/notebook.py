"""The notebook extension: after `%load_ext ridgeline`, `%%ridgeline` profiles a cell."""

import shlex
from typing import Any

from ridgeline.integrations.block import profile

_USAGE = "%%ridgeline [--steps N] [--trace-steps N] [--python] [--full] [--quiet] [NAME]"


def load_ipython_extension(shell: Any) -> None:
    def ridgeline(line: str, cell: str) -> None:
        """Profile this cell: what limits it, and where the time of each step goes."""
        with profile_of_line(line):
            shell.run_cell(cell).raise_error()

    ridgeline.__doc__ = f"{ridgeline.__doc__}\n\n{_USAGE}"
    shell.register_magic_function(ridgeline, magic_kind="cell", magic_name="ridgeline")


def profile_of_line(line: str) -> profile:
    """Return the profiler with the options that the line of the magic names."""
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
            raise ValueError(f"unknown option {word}: {_USAGE}")
        else:
            name = word
    return profile(name, **given)
