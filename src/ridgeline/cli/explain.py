"""`ridgeline explain`: the rules of the diagnosis, one by one."""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.report.rule_page import RulePage

WIDEST = 100
"""Columns: prose is not read wider, however wide the window is."""
SHORTEST = 3
"""Letters of a name's part: fewer are in every name."""
EXAMPLES = """\b
Examples:
  ridgeline explain                   all rules, by family
  ridgeline explain loader-starves    one: what it looks at, why it costs, the fix
  ridgeline explain --json            all of them, for programs
"""


@click.command("explain", epilog=EXAMPLES)
@click.argument("rule", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
def command(rule: str | None, as_json: bool, verbose: bool) -> None:
    """The rules of the diagnosis: what each looks at, from when on, why it costs, the fix.

    RULE is a rule's name, as `ridgeline run` and `ridgeline trace` print it; without one all are
    listed.

    Exit codes: 0 ok; 2 there is no such rule.
    """
    chosen = rule_pages() if rule is None else (_page(_found(rule)),)
    if as_json:
        import msgspec

        from ridgeline.report.plain import json_text
        from ridgeline.report.rule_page import document

        text = msgspec.json.format(msgspec.json.encode(document(chosen)), indent=2).decode()
        click.echo(json_text(text))
        return
    from rich.console import Console

    from ridgeline.report.rule_page import show_index, show_page

    console = Console(highlight=False)
    console.width = min(console.width if sys.stdout.isatty() else WIDEST, WIDEST)
    if rule is None:
        show_index(chosen, console)
    else:
        show_page(chosen[0], console)


def rule_pages() -> "tuple[RulePage, ...]":
    """Every rule there is, by name."""
    from ridgeline.diagnosis.rule_texts import rule_names

    return tuple(_page(name) for name in rule_names())


def _page(name: str) -> "RulePage":
    from ridgeline.diagnosis.rule_texts import rule_text
    from ridgeline.report.rule_page import RulePage

    fields = RulePage.__struct_fields__
    return RulePage(**{key: value for key, value in rule_text(name).items() if key in fields})


def _found(rule: str) -> str:
    """A rule's name, however it was written: loader_starves, docs/rules/loader-starves.md."""
    from ridgeline.diagnosis.rule_texts import rule_names
    from ridgeline.report.plain import printable

    asked = Path(rule).name.removesuffix(".md").removesuffix(".py").lower().replace("_", "-")
    names = rule_names()
    if asked in names:
        return asked
    near = get_close_matches(asked, names, n=3, cutoff=0.5)
    if len(asked) >= SHORTEST:
        near += [name for name in names if asked in name and name not in near][: 3 - len(near)]
    raise UsageError(
        f"there is no rule {printable(rule)}" if rule.strip() else "no rule is named",
        f"near it: {', '.join(near)}" if near else "ridgeline explain lists them",
    )
