"""Advice: what no change answers, a line each."""

from ridgeline.diagnosis.rule import registered as rules
from ridgeline.fixes.fix import registered
from ridgeline.optimization.program import advice
from ridgeline.records.finding import Finding


def finding(rule: str = "item-sync", **told: object) -> Finding:
    given = {
        "claim": "`loss.item()` makes the host wait for the GPU once a step",
        "share_pct": 2.0,
        "gain_bound": 1.02,
        "file": "train.py",
        "line": 63,
    }
    return Finding(rule=rule, **{**given, **told})  # type: ignore[arg-type]


def test_advice_names_the_line_the_fix_and_the_bound_of_a_wait() -> None:
    (line,) = advice([finding(change="total += loss.detach()  # stays on the device")])
    assert line.startswith("train.py:63 `loss.item()` makes the host wait for the GPU once a step:")
    assert "keep the number on the device" in line
    assert "`total += loss.detach()`" in line
    assert line.endswith("(up to 1.02 ×)")


def test_long_code_is_left_to_the_findings_page() -> None:
    (line,) = advice([finding(change="if step % 100 == 99:\n    print(total.item())")])
    assert "print(" not in line
    assert "\n" not in line


def test_what_a_change_answers_and_what_is_little_is_no_advice() -> None:
    answered = registered()[0].fix.answers[0]
    assert advice([finding(answered), finding(share_pct=0.9)]) == ()


def test_a_loop_that_must_be_changed_by_hand_is_advice_and_one_that_a_fix_answers_is_not() -> None:
    by_hand = finding("decoding-without-cache", change="out = model(ids, past_key_values=cache)")
    (line,) = advice([by_hand])
    assert "`out = model(ids, past_key_values=cache)`" in line
    assert advice([finding("decoding-without-cache", fix="kv-cache")]) == ()


def test_every_rule_without_a_change_has_something_to_say() -> None:
    every = [
        finding(one.rule.id, docs=one.rule.docs, claim=one.rule.text.title, fix="some")
        for one in rules()
    ]
    answered = {rule for one in registered() for rule in one.fix.answers}
    open_ = [one for one in every if one.rule not in answered]
    lines = advice(every)
    assert len(lines) == len(open_) > 10
    for one, line in zip(open_, lines, strict=True):
        said = line.removeprefix(f"train.py:63 {one.claim}").partition(" (up to")[0]
        assert said.startswith(": "), line
        assert len(said) > 8, line


def test_a_rule_nobody_knows_and_a_finding_without_a_place_still_read() -> None:
    assert advice([finding("new-rule", file="", line=None, claim="It waits.")]) == (
        "It waits (up to 1.02 ×)",
    )
