"""A self-test as people and programs read it."""

import csv
import io
import json

import msgspec
import pytest

from ridgeline.records.comparison import Surroundings
from ridgeline.report.document import Command
from ridgeline.report.renderers import csv as csv_renderer
from ridgeline.report.renderers import markdown
from ridgeline.report.views.selftest import (
    about,
    advice,
    bench_title,
    data,
    document,
    figures,
    next_command,
    notes,
    summary,
)
from tests.unit.report.made_up_selftest import bench, selftest, tally
from tests.unit.report.rendered import at_terminal, grid, tables


def test_the_answer_is_one_line_and_comes_first() -> None:
    expected = (
        "identical code was called different in 1 of 34 windows (2.9 % [0.5, 14.9]); "
        "sequential Welch: 41 %"
    )
    assert summary(selftest()) == expected
    assert expected in " ".join(at_terminal(document(selftest())).split())
    assert markdown.render(document(selftest())).startswith(f"### {expected}")
    assert data(selftest())["summary"] == expected


def test_false_alarms_that_chance_explains_pass() -> None:
    test = selftest(measured=bench(windows=20, alarms=3))  # 15 %, but from 5.2 % on
    assert test.passed
    assert advice(test) == ""


def test_too_many_false_alarms_fail_with_what_to_do() -> None:
    test = selftest(measured=bench(windows=40, alarms=10))
    assert not test.passed
    assert "OMP_NUM_THREADS=1" in advice(test)
    assert "quieter host" in advice(test)
    assert advice(test) in " ".join(at_terminal(document(test)).split())
    assert data(test)["advice"] == advice(test)


def test_one_thread_is_not_told_to_use_fewer() -> None:
    alone = Surroundings(device="EPYC", threads=1, cores=2)
    test = selftest(measured=bench(windows=40, alarms=10), surroundings=alone)
    assert "OMP_NUM_THREADS" not in advice(test)
    assert "quieter host" in advice(test)


def test_a_row_has_both_procedures_of_one_candidate() -> None:
    found = {row[0]: row for row in grid(tables(document(selftest()))[0])}
    assert list(found) == ["identical", "2 % slower", "5 % slower", "10 % slower"]
    assert found["identical"][1:5] == ["34", "2.9 % [0.5, 14.9]", "29 %", "68 %"]
    assert found["5 % slower"][4:] == ["41 %", "+5 %", "41 % [26.4, 57.8]"]


def test_the_title_counts_windows_only_where_all_rows_have_as_many() -> None:
    assert bench_title(bench()) == "this machine, 34 windows of 30 rounds"
    uneven = msgspec.structs.replace(
        bench(), tallies=(*bench().tallies[:-1], tally("sequential Welch", 0.1, 5))
    )
    assert bench_title(uneven) == "this machine, windows of 30 rounds"


def test_few_windows_are_noted_with_a_sufficient_budget() -> None:
    test = selftest(measured=bench(windows=3, alarms=0), budget_s=10.0, spent_s=9.0)
    assert "only 3 windows: the rates are rough" in notes(test)
    assert next_command(test) == Command("for 20 windows", "ridgeline selftest --budget 60s")
    assert not any("rough" in text for text in notes(selftest()))


def test_samples_with_different_numbers_of_calls_are_noted() -> None:
    assert "samples of 11 ms of 3 calls" in about(selftest())
    assert "samples of 11 ms of 1 to 4 calls" in about(selftest(block_calls=(4, 4, 1, 2, 4, 3)))


def test_the_state_of_the_host_and_an_interruption_are_noted() -> None:
    said = notes(selftest(stopped="interrupted", simulated=None))
    assert "host: other processes use 1.4 of 2 cores" in said
    assert any("interrupted" in text for text in said)
    assert not any("interrupted" in text for text in notes(selftest()))


def test_a_verdict_against_the_truth_is_noted() -> None:
    wrong = (*bench().tallies[:-1], tally("sequential Welch", 0.1, 34, faster=4))
    test = selftest(measured=msgspec.structs.replace(bench(), tallies=wrong))
    expected = "measured: sequential Welch called slower code FASTER in 4 of 102 windows"
    assert expected in notes(test)
    assert not any("FASTER" in text for text in notes(selftest()))


def test_windows_without_a_verdict_because_of_the_control_are_noted() -> None:
    test = selftest(measured=msgspec.structs.replace(bench(), controls_differ=2))
    assert any("control itself differed in 2 windows" in text for text in notes(test))


def test_the_document_has_every_rate_as_a_share_and_survives_json() -> None:
    found = json.loads(msgspec.json.encode(data(selftest())))
    assert found["schema"] == "ridgeline.selftest/1"
    assert found["passed"] is True
    first = found["measured"]["tallies"][0]
    assert (first["procedure"], first["effect"]) == ("ridgeline", 0.0)
    assert first["called"]["share"] == pytest.approx(1 / 34)
    assert found["simulated"]["source"] == "simulated"


def test_an_interrupted_test_has_no_simulation() -> None:
    test = selftest(simulated=None, stopped="interrupted")
    assert data(test)["simulated"] is None
    assert "simulated: AR(1)" not in at_terminal(document(test))
    assert "simulated: AR(1)" in at_terminal(document(selftest()))


def test_csv_has_a_line_a_source_procedure_and_effect() -> None:
    found = list(csv.DictReader(io.StringIO(csv_renderer.render(figures(selftest())))))
    assert len(found) == 2 * 2 * 4
    assert found[0]["source"] == "measured"
    assert float(found[0]["called_high"]) == pytest.approx(0.149, abs=1e-3)
    assert found[-1]["seen"] == ""


def test_a_narrow_terminal_loses_no_number() -> None:
    assert "".join(["2.9", "%", "[0.5,", "14.9]"]) in "".join(
        at_terminal(document(selftest()), 60).split()
    )
