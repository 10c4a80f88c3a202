"""`ridgeline explain`: the pages of the diagnosis rules."""

from difflib import get_close_matches
from pathlib import Path

import click

from ridgeline.errors import UsageError

MAX_COLUMNS = 100
"""Wider prose is hard to read, however wide the window is."""
MIN_NAME_PART = 3
"""Letters that a part of a name must have to be searched for: fewer are in every name."""
EXAMPLES = """\b
Examples:
  ridgeline explain                   list all rules, by family
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
    from ridgeline.cli.output import deliver
    from ridgeline.diagnosis.rule_texts import rule_names, rule_page
    from ridgeline.report.views.rule import rule_report, rules_report

    if rule is None:
        report = rules_report([rule_page(name) for name in rule_names()])
    else:
        report = rule_report(rule_page(_matching_name(rule, rule_names())))
    deliver(report, as_json, None, max_columns=MAX_COLUMNS)


def _matching_name(rule: str, names: tuple[str, ...]) -> str:
    """Return the name of a rule from any spelling: loader_starves, docs/rules/loader-starves.md."""
    wanted = Path(rule).name.removesuffix(".md").removesuffix(".py").lower().replace("_", "-")
    if wanted in names:
        return wanted
    near = get_close_matches(wanted, names, n=3, cutoff=0.5)
    if len(wanted) >= MIN_NAME_PART:
        near += [name for name in names if wanted in name and name not in near][: 3 - len(near)]
    raise UsageError(
        f"there is no rule {rule}" if rule.strip() else "no rule is named",
        f"did you mean: {', '.join(near)}" if near else "ridgeline explain lists all rules",
    )
