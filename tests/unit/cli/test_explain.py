"""`ridgeline explain`: the rules, one by one; and their pages in docs/, which must be current."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ridgeline.cli.explain import command
from ridgeline.diagnosis.rule import registered
from ridgeline.diagnosis.rule_texts import rule_names, rule_page
from ridgeline.errors import UsageError
from ridgeline.report.views.rule import FAMILIES

ROOT = Path(__file__).parents[3]
RULES = [rule_page(name) for name in rule_names()]


def explained(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_without_a_name_all_are_listed_by_family() -> None:
    done = explained()
    assert done.exit_code == 0
    for page in RULES:
        assert f"   {page.id}  " in done.output
    places = [done.output.index(FAMILIES[page.family]) for page in RULES]
    assert all(places)


@pytest.mark.parametrize("page", RULES, ids=lambda page: page.id)
def test_each_rule_has_a_page(page: object) -> None:
    done = explained(page.id)  # type: ignore[attr-defined]
    assert done.exit_code == 0
    for part in ("what it looks at", "when it reports", "why it costs", "the fix", "may be wrong"):
        assert part in done.output
    assert max(map(len, done.output.splitlines())) <= 120  # code is not wrapped
    assert "```" not in done.output


@pytest.mark.parametrize("page", RULES, ids=lambda page: page.id)
def test_each_rule_says_all_that_a_page_needs(page: object) -> None:
    assert page.family in FAMILIES  # type: ignore[attr-defined]
    assert len(page.title) <= 80  # type: ignore[attr-defined]
    for title, text in page.parts:  # type: ignore[attr-defined]
        assert len(text.strip()) > 20, title


def test_a_name_is_found_however_it_is_written() -> None:
    page = RULES[0]
    for name in (page.id.upper(), page.id.replace("-", "_"), f"docs/rules/{page.id}.md"):
        assert page.title in explained(name).output


def test_an_unknown_rule_names_those_near_it() -> None:
    page = RULES[0]
    done = explained(f"{page.id}x")
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2
    assert page.id in done.exception.hint
    nothing = explained("\x1bzzzzzz")
    assert isinstance(nothing.exception, UsageError)
    assert nothing.exception.hint == "ridgeline explain lists all rules"
    for too_little in ("", "1"):
        refused = explained(too_little).exception
        assert isinstance(refused, UsageError)
        assert refused.hint == "ridgeline explain lists all rules"


def test_pages_have_the_facts_of_the_imported_rules() -> None:
    """Pages are made without importing the rules; here the rules are imported to compare."""
    rules = [entry.rule for entry in registered()]
    assert rule_names() == tuple(rule.id for rule in rules)
    for rule in rules:
        page = rule_page(rule.id)
        assert (page.id, page.family, page.needs) == (rule.id, rule.family, rule.needs)


def test_explaining_imports_no_rule() -> None:
    code = (
        "import sys; from click.testing import CliRunner;"
        "from ridgeline.cli.explain import command;"
        "CliRunner().invoke(command, ['tf32-off']);"
        "print('numpy' in sys.modules, any('diagnosis.rules' in name for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_json_has_every_field() -> None:
    every = json.loads(explained("--json").stdout)
    assert every["schema"] == "ridgeline.rules/1"
    assert [rule["id"] for rule in every["rules"]] == [page.id for page in RULES]
    (one,) = json.loads(explained(RULES[0].id, "--json").stdout)["rules"]
    assert one.keys() == {
        "id", "family", "title", "looks_at", "threshold", "why", "fix", "wrong_when", "needs",
    }  # fmt: skip


def test_the_pages_in_docs_are_those_of_the_rules() -> None:
    """python docs/rule_pages.py writes them again."""
    made = runpy.run_path(str(ROOT / "docs" / "rule_pages.py"))["pages"]()
    folder = ROOT / "docs" / "rules"
    kept = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}
    assert kept.keys() == made.keys()
    stale = [name for name, text in made.items() if kept[name] != text]
    assert stale == []
