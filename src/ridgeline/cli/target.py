"""Command lines of the form `[options] program arguments…`.

Options of ridgeline end where the program begins. If a person wrote the program's own options
before the program, the error shows the command with the words in the right order.
"""

import os
import shlex
from collections.abc import Sequence
from difflib import get_close_matches

import click
from msgspec import Struct

from ridgeline.errors import UsageError
from ridgeline.records.run import TargetKind

_KINDS: dict[str, TargetKind] = {"-m": "module", "-c": "code"}
_WORDS = "ridgeline.words"
_PROGRAM = "ridgeline.program"
MIN_TYPO_SIMILARITY = 0.8
"""--budgte is taken for --budget from this similarity on; --batch-size (0.74) is not --batch."""


class Given(Struct, frozen=True):
    """A program as typed: a script, a module (-m) or code (-c), with its arguments."""

    kind: TargetKind
    name: str
    arguments: tuple[str, ...]


class TargetCommand(click.Command):
    """A command that parses its own options up to the program and leaves every word after it alone.
    One `--` before the program is dropped."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        options, rest = self._split(args)
        ctx.meta[_PROGRAM] = _program(rest)
        try:
            return super().parse_args(ctx, options)
        except click.NoSuchOption as error:
            reordered = self.reordered(args)
            if not reordered:
                raise
            name = error.option_name
            near = get_close_matches(name, self._options(), 1, MIN_TYPO_SIMILARITY)
            meant = f", did you mean {near[0]}?" if near else f" of ridgeline {self.name}"
            raise UsageError(
                f"no such option{f' {name}' * bool(name)}{meant}",
                f"options of the script come after it: {reordered}",
            ) from None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGS]…")

    def reordered(self, args: Sequence[str]) -> str:
        """Return the command with the script's own options after the script; "" if no script is
        among the words."""
        index = self._program_index(args)
        if index is None:
            return ""
        ours, theirs = self._sorted(args[:index])
        length = 2 if args[index] in _KINDS else 1
        program, rest = args[index : index + length], args[index + length :]
        return shlex.join(["ridgeline", self.name or "", *ours, *program, *theirs, *rest])

    def no_such_file(self, ctx: click.Context, name: str) -> UsageError:
        """Return the error for a script that does not exist, with the likely cause."""
        reordered, hint = self.reordered(words_of(ctx)), ""
        if reordered and not name.endswith(".py"):
            hint = f"options of the script come after it: {reordered}"
        elif name.startswith("-"):
            hint = (
                "words after the script belong to it: options of ridgeline come before the script"
            )
        if not hint:
            hint = f"looked for it in {os.path.dirname(os.path.abspath(name))}"
        return UsageError(f"there is no file {name}", hint)

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return our options, and the program with its arguments."""
        with_values = self._options_with_values()
        index = 0
        while index < len(args):
            word = args[index]
            if word == "--":
                return list(args[:index]), list(args[index + 1 :])
            if word[:2] in _KINDS or word == "-" or not word.startswith("-"):
                return list(args[:index]), list(args[index:])
            index += 2 if word in with_values else 1
        return list(args), []

    def _options_with_values(self) -> set[str]:
        options = (p for p in self.params if isinstance(p, click.Option) and not p.is_flag)
        return {name for option in options for name in option.opts}

    def _options(self) -> set[str]:
        return {name for parameter in self.params for name in parameter.opts}

    def _program_index(self, args: Sequence[str]) -> int | None:
        """Return where the program is named: at a Python file that exists, else at -m or -c."""
        with_values = self._options_with_values()
        for index, word in enumerate(args):
            is_value = index > 0 and args[index - 1] in with_values
            if word.endswith(".py") and os.path.isfile(word) and not is_value:
                return index
        return next((i for i, word in enumerate(args[:-1]) if word in _KINDS), None)

    def _sorted(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return our options and the program's. A flag of ours with a word after it is an option of
        the program's: in `--batch 8 train.py`, --batch is not ours."""
        with_values = self._options_with_values()
        flags = self._options() - with_values
        ours, theirs = list[str](), list[str]()
        words = list(args)
        while words:
            word = words.pop(0)
            has_value = bool(words) and not words[0].startswith("-")
            if word in with_values:
                ours += [word, *words[:1]]
                del words[:1]
            elif word.partition("=")[0] in with_values or (word in flags and not has_value):
                ours.append(word)
            else:
                theirs.append(word)
        return ours, theirs


def target_of(ctx: click.Context) -> Given | None:
    """Return the program of a command line; None if there is none."""
    program: Given | None = ctx.meta.get(_PROGRAM)
    return program


def words_of(ctx: click.Context) -> tuple[str, ...]:
    """Return the words as typed after the command's name."""
    words: tuple[str, ...] = ctx.meta.get(_WORDS, ())
    return words


def _program(words: Sequence[str]) -> Given | None:
    if not words:
        return None
    first, *others = words
    kind = _KINDS.get(first[:2])
    if kind is None:
        return Given("script", first, tuple(others))
    if len(first) > 2:  # -mpackage, which Python understands too
        return Given(kind, first[2:], tuple(others))
    if not others:
        raise click.UsageError(f"{first} needs a {'module' if kind == 'module' else 'program'}.")
    return Given(kind, others[0], tuple(others[1:]))
