"""`ridgeline explain`: the pages of the diagnosis rules."""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.report.rule_page import RulePage

MAX_WIDTH = 100
"""Columns of text: wider prose is hard to read, however wide the window is."""
MIN_NAME_PART = 3
"""Letters that a part of a name must have to be searched for: fewer are in every name."""
EXAMPLES = """\b
Examples:
  ridgeline explain                   all rules, by family
  ridgeline explain loader-starves    one rule: what it looks at, why it costs, the fix
  ridgeline explain --json            all rules, for programs
"""


@click.command("explain", epilog=EXAMPLES)
@click.argument("rule", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks.")
def command(rule: str | None, as_json: bool, verbose: bool) -> None:
    """Explain a rule of the diagnosis: what it looks at, when it reports, why it costs, the fix.

    RULE is the name of a rule, as `ridgeline run` and `ridgeline trace` print it. Without a name,
    all rules are listed.

    Exit codes: 0 ok; 2 there is no such rule.
    """
    from ridgeline.diagnosis.rule_texts import rule_page

    pages = rule_pages() if rule is None else (rule_page(_matching_name(rule)),)
    if as_json:
        import msgspec

        from ridgeline.report.plain import json_text
        from ridgeline.report.rule_page import document

        text = msgspec.json.format(msgspec.json.encode(document(pages)), indent=2).decode()
        click.echo(json_text(text))
        return
    from rich.console import Console

    from ridgeline.report.rule_page import show_index, show_page

    console = Console(highlight=False)
    console.width = min(console.width if sys.stdout.isatty() else MAX_WIDTH, MAX_WIDTH)
    if rule is None:
        show_index(pages, console)
    else:
        show_page(pages[0], console)


def rule_pages() -> "tuple[RulePage, ...]":
    """Return the pages of all rules, sorted by id."""
    from ridgeline.diagnosis.rule_texts import rule_names, rule_page

    return tuple(rule_page(name) for name in rule_names())


def _matching_name(rule: str) -> str:
    """Return the name of a rule from any spelling: loader_starves, docs/rules/loader-starves.md."""
    from ridgeline.diagnosis.rule_texts import rule_names
    from ridgeline.report.plain import printable

    wanted = Path(rule).name.removesuffix(".md").removesuffix(".py").lower().replace("_", "-")
    names = rule_names()
    if wanted in names:
        return wanted
    near = get_close_matches(wanted, names, n=3, cutoff=0.5)
    if len(wanted) >= MIN_NAME_PART:
        near += [name for name in names if wanted in name and name not in near][: 3 - len(near)]
    raise UsageError(
        f"there is no rule {printable(rule)}" if rule.strip() else "no rule is named",
        f"did you mean: {', '.join(near)}" if near else "ridgeline explain lists all rules",
    )
