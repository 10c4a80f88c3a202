"""The checks of the source tree find what they are for, and nothing else."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def house() -> ModuleType:
    path = Path(__file__).parents[3] / "checks" / "house.py"
    spec = importlib.util.spec_from_file_location("house", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "code",
    [
        "rung.why.startswith('not known')",
        "applied.what.partition('=')[2]",
        "re.sub('[0-9]', '#', part.why)",
        "_NUMBER.search(finding.claim)",
        "'failed' in parity.why",
        "summary.verdict.sentence.removeprefix('unknown: ')",
    ],
)
def test_code_that_reads_a_sentence_is_reported(house: ModuleType, code: str) -> None:
    assert len(list(house.readings(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "' '.join(finding.claim.split())",
        "call.text.startswith('torch.')",
        "reason.code == Skip.NO_GPU",
        "_FRAME.match(event.name)",
        "note = parity.why",
    ],
)
def test_code_that_prints_or_reads_facts_is_not_reported(house: ModuleType, code: str) -> None:
    assert not list(house.readings(ast.parse(code)))


def test_imports_inside_functions_count_as_imports(house: ModuleType) -> None:
    tree = ast.parse("def f():\n    from ridgeline.records import run\n")
    assert "ridgeline.records.run" in list(house.imports(tree))


def test_a_small_module_with_one_importer_is_reported(house: ModuleType) -> None:
    lengths = {"ridgeline.measure.small": 12, "ridgeline.measure.large": 200}
    importers = {
        "ridgeline.measure.small": {"ridgeline.measure.large"},
        "ridgeline.measure.large": set(),
    }
    assert len(list(house._fragments(lengths, importers))) == 1
    importers["ridgeline.measure.small"].add("ridgeline.cli.run")
    assert not list(house._fragments(lengths, importers))
