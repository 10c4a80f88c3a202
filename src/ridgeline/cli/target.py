"""`[options] target args…`: what is ours ends where the target begins."""

from collections.abc import Sequence

import click
from msgspec import Struct

from ridgeline.records.run import TargetKind

_KINDS: dict[str, TargetKind] = {"-m": "module", "-c": "code"}


class Given(Struct, frozen=True):
    """A program as typed."""

    kind: TargetKind
    name: str
    arguments: tuple[str, ...]


class TargetCommand(click.Command):
    """Parses its own options up to the target (a script, `-m module`, `-c code`; one `--` before it
    is dropped) and leaves every word after it alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, rest = self._split(args)
        ctx.meta["ridgeline.target"] = _given(rest)
        return super().parse_args(ctx, ours)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGS]…")

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
