"""`[options] target args…`: what is ours ends where the target begins; where a person wrote the
script's options before the script, the command put right."""

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
_NEAR = 0.8
"""--budgte is --budget; --batch-size (0.74) is not --batch."""


class Given(Struct, frozen=True):
    """A program as typed."""

    kind: TargetKind
    name: str
    arguments: tuple[str, ...]


class TargetCommand(click.Command):
    """Parses its own options up to the target (a script, `-m module`, `-c code`; one `--` before it
    is dropped) and leaves every word after it alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        ours, rest = self._split(args)
        ctx.meta["ridgeline.target"] = _given(rest)
        try:
            return super().parse_args(ctx, ours)
        except click.NoSuchOption as error:
            right = self.put_right(args)
            if not right:
                raise
            name = error.option_name
            near = get_close_matches(name, self._options(), 1, _NEAR)
            meant = f", did you mean {near[0]}?" if near else f": {name} is none of ridgeline's"
            raise UsageError(
                f"no such option{f' {name}' * bool(near)}{meant}",
                f"options of the script come after it: {right}",
            ) from None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGS]…")

    def put_right(self, args: Sequence[str]) -> str:
        """The same words with the script's own after the script; "" where no script is seen."""
        at = self._program(args)
        if at is None:
            return ""
        ours, theirs = self._sorted(args[:at])
        length = 2 if args[at] in _KINDS else 1
        program, rest = args[at : at + length], args[at + length :]
        return shlex.join(["ridgeline", self.name or "", *ours, *program, *theirs, *rest])

    def no_such_file(self, ctx: click.Context, name: str) -> UsageError:
        """Of a script that is not there: what a person may have meant."""
        right, hint = self.put_right(words_of(ctx)), ""
        if right and not name.endswith(".py"):
            hint = f"options of the script come after it: {right}"
        elif name.startswith("-"):
            hint = "what follows the script is for the script: options of ridgeline come before it"
        return UsageError(f"there is no file {name}", hint)

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        values = self._options_with_values()
        at = 0
        while at < len(args):
            word = args[at]
            if word == "--":
                return list(args[:at]), list(args[at + 1 :])
            if word[:2] in _KINDS and not word.startswith("--"):
                return list(args[:at]), list(args[at:])
            if word == "-" or not word.startswith("-"):
                return list(args[:at]), list(args[at:])
            at += 2 if word in values else 1
        return list(args), []

    def _options_with_values(self) -> set[str]:
        return {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }

    def _options(self) -> set[str]:
        return {name for parameter in self.params for name in parameter.opts}

    def _program(self, args: Sequence[str]) -> int | None:
        """Where the program is named: a Python file that is there, else -m or -c."""
        values = self._options_with_values()
        files = [
            at
            for at, word in enumerate(args)
            if word.endswith(".py") and os.path.isfile(word)
            if not at or args[at - 1] not in values
        ]
        others = [at for at, word in enumerate(args[:-1]) if word in _KINDS]
        return next(iter([*files, *others]), None)

    def _sorted(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Ours and theirs. A word after a flag of ours makes it theirs: `--batch 8`."""
        values = self._options_with_values()
        flags = self._options() - values
        ours, theirs = list[str](), list[str]()
        at = 0
        while at < len(args):
            word, following = args[at], args[at + 1 : at + 2]
            if word in values:
                ours += [word, *following]
                at += 1
            elif word.partition("=")[0] in values or (word in flags and not _value(following)):
                ours.append(word)
            else:
                theirs.append(word)
            at += 1
        return ours, theirs


def _given(rest: Sequence[str]) -> Given | None:
    if not rest:
        return None
    first, *others = rest
    kind = _KINDS.get(first[:2]) if not first.startswith("--") else None
    if kind is None:
        return Given("script", first, tuple(others))
    if len(first) > 2:  # -mpackage, as Python takes it too
        return Given(kind, first[2:], tuple(others))
    if not others:
        raise click.UsageError(f"{first} needs a {'module' if kind == 'module' else 'program'}.")
    return Given(kind, others[0], tuple(others[1:]))


def target_of(ctx: click.Context) -> Given | None:
    found: Given | None = ctx.meta.get("ridgeline.target")
    return found


def words_of(ctx: click.Context) -> tuple[str, ...]:
    """As typed after the command's name."""
    found: tuple[str, ...] = ctx.meta.get(_WORDS, ())
    return found


def _value(following: Sequence[str]) -> bool:
    return bool(following) and not following[0].startswith("-")
