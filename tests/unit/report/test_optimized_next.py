"""What the report says to type next: commands that can be pasted, and that end."""

import shlex
from typing import Any

import click
import pytest
from msgspec.structs import replace

from ridgeline.cli.compare import command as compare
from ridgeline.cli.optimize import command as optimize
from ridgeline.records.facts import Ratio, because
from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized, SearchCode, Written
from ridgeline.records.parity import Check, Parity
from ridgeline.report.views.optimized_phrases import next_command as command_after
from tests.unit.report.made_up_optimized import (
    climbed,
    doubtful,
    interrupted,
    nothing_kept,
    parity,
    total,
)
from tests.unit.report.test_optimized_terminal import shown


def next_command(found: Optimized) -> tuple[str, str]:
    following = command_after(Ladder(found))
    return (following.why, following.text) if following is not None else ("", "")


def parsed(typed: str, command: click.Command) -> click.Context:
    """By the real parser; it raises on what it does not know."""
    program, name, *words = shlex.split(typed)
    assert (program, name) == ("ridgeline", command.name)
    return command.make_context(name, words)


def copied(command: str, copy: str = "optimized_train.py", **told: Any) -> Optimized:
    return replace(climbed(), command=command, written=Written(files=(copy,)), **told)


def test_the_copy_is_checked_by_a_command_that_ends_each_program_early() -> None:
    why, typed = next_command(climbed())
    assert why == "check it yourself"
    assert typed == (
        "ridgeline compare train.py optimized_train.py --by step --steps 20 -- --epochs 1"
    )
    assert typed in shown(climbed())
    found = parsed(typed, compare)
    assert found.params["targets"] == ("train.py", "optimized_train.py")
    assert (found.params["by"], found.params["steps"]) == ("step", 20)
    assert found.meta["script_arguments"] == ("--epochs", "1")


@pytest.mark.parametrize(
    ("command", "targets", "arguments"),
    [
        ("train.py", ("train.py", "optimized_train.py"), ()),
        ("train.py --steps 5 -- -q", ("train.py", "optimized_train.py"),
         ("--steps", "5", "--", "-q")),
        ("'my train.py' 'a b'", ("my train.py", "optimized_train.py"), ("a b",)),
        ("-odd.py --by run", ("./-odd.py", "optimized_train.py"), ("--by", "run")),
    ],
)  # fmt: skip
def test_arguments_of_the_script_are_passed_to_the_script(
    command: str, targets: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    found = parsed(next_command(copied(command))[1], compare)
    assert found.params["targets"] == targets
    assert found.meta["script_arguments"] == arguments
    assert found.params["steps"] == 20


@pytest.mark.parametrize(("before_ms", "steps"), [(3.0, 60), (25.0, 40), (2000.0, 20), (0.0, 60)])
def test_the_number_of_steps_takes_about_a_second(before_ms: float, steps: int) -> None:
    known = replace(total(), before_ms=before_ms)
    found = parsed(next_command(replace(climbed(), total=known))[1], compare)
    assert found.params["steps"] == steps


def test_a_copy_that_needs_a_larger_tolerance_gets_it_in_the_command() -> None:
    assert parsed(next_command(climbed())[1], compare).params["tolerance"] is None
    coarse = Check(what="losses", passed=True, text="", difference=0.006, allowed=0.0159)
    known = Parity(equality="equal", why="", checks=(coarse, *parity().checks[1:]))
    found = replace(climbed(), total=replace(total(), parity=known))
    assert parsed(next_command(found)[1], compare).params["tolerance"] == 0.02


def test_the_command_names_a_goal_that_compare_knows() -> None:
    for goal, given in (("speed", None), ("memory", "memory"), ("throughput", "throughput")):
        found = parsed(next_command(replace(climbed(), goal=goal))[1], compare)
        assert found.params["goal"] == given
    assert (
        parsed(next_command(replace(climbed(), goal="energy"))[1], compare).params["goal"] is None
    )


def test_a_program_without_optimizer_steps_is_compared_by_whole_runs() -> None:
    alone = (Check(what="applied steps", passed=True, text="", difference=0.0),)
    known = Parity(equality="equal", why="", checks=alone)
    found = parsed(
        next_command(replace(climbed(), total=replace(total(), parity=known)))[1], compare
    )
    assert (found.params["by"], found.params["steps"]) == ("auto", None)


def test_no_compare_command_is_printed_for_a_target_it_cannot_name() -> None:
    for command in ("-m package.train", "it's.py", "", "odd:name.py"):
        assert "compare" not in next_command(copied(command))[1]


def test_an_unconfirmed_result_suggests_more_time_if_that_helps() -> None:
    assert next_command(doubtful()) == ("with more time", doubtful().longer)
    assert doubtful().longer in shown(doubtful())
    six = Ratio(value=1.5, ci_low=0.8, ci_high=3.0, pairs=6)
    noisy = replace(
        doubtful(), total=replace(total(), ratio=six, confirmed=False),
        resume="ridgeline optimize train.py",
    )  # fmt: skip
    assert next_command(noisy) == ("on a quiet machine", "ridgeline optimize train.py")


def test_each_way_to_end_has_its_own_next_command() -> None:
    assert next_command(nothing_kept())[1] == "ridgeline run train.py --epochs 1"
    assert next_command(interrupted()) == ("continue", interrupted().resume)
    assert f"do it again:  {interrupted().replay}" in shown(interrupted())
    same = replace(interrupted(), replay=interrupted().resume)
    assert shown(same).count(same.resume) == 1


def test_a_search_that_ran_out_of_time_suggests_more_time() -> None:
    ended = replace(nothing_kept(), stopped=because(SearchCode.OUT_OF_TIME))
    assert next_command(ended) == ("with more time", ended.longer)
    assert next_command(replace(ended, baseline_ms=0.0)) == ("with more time", ended.longer)
    assert next_command(replace(ended, longer="")) == ("continue", ended.resume)
    six = Ratio(value=1.5, ci_low=0.8, ci_high=3.0, pairs=6)
    noisy = replace(
        doubtful(), total=replace(total(), ratio=six, confirmed=False), stopped=ended.stopped
    )
    assert next_command(noisy) == ("on a quiet machine, with more time", noisy.longer)
    # A win is checked first.
    assert "compare" in next_command(replace(climbed(), stopped=ended.stopped))[1]


def test_a_program_that_cannot_be_timed_is_not_continued() -> None:
    found = Optimized(
        command="five.py", resume="ridgeline optimize five.py",
        stopped=because(SearchCode.BASELINE_TOO_SHORT, ended="", needed_steps=14),
    )  # fmt: skip
    assert next_command(found) == ("see where its time goes", "ridgeline run five.py")
    assert next_command(replace(found, stopped=because(SearchCode.INTERRUPTED)))[0] == "continue"


def test_the_command_with_more_time_is_one_that_optimize_reads() -> None:
    found = parsed(next_command(doubtful())[1], optimize)
    assert found.params["budget"] == "20m"
