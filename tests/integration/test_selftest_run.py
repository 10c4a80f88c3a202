"""A short self-test on this machine: what it says is whole; how often it errs is not asked."""

from pathlib import Path

import pytest

from tests.integration.cold_and_warm import cold

EFFECTS = [0.0, 0.02, 0.05, 0.1]


@pytest.mark.slow
def test_a_self_test_of_five_seconds_counts_every_candidate(tmp_path: Path) -> None:
    outcome = cold(
        ["selftest", "--budget", "5s", "--device", "cpu", "--json", "-o", "found.csv"], tmp_path
    )
    assert outcome.code in (0, 3), outcome.err
    found = outcome.document
    assert found["schema"] == "ridgeline.selftest/1"
    assert found["stopped"] == "budget"
    assert found["passed"] is (outcome.code == 0)
    for source in ("measured", "simulated"):
        tallies = found[source]["tallies"]
        for procedure in ("ridgeline", "sequential Welch"):
            assert [t["effect"] for t in tallies if t["procedure"] == procedure] == EFFECTS
        for tally in tallies:
            said = sum(tally[name] for name in ("faster", "slower", "same", "undecided"))
            assert said == tally["windows"] >= 1
            assert (
                0 <= tally["called"]["low"] <= tally["called"]["share"] <= tally["called"]["high"]
            )
    assert found["measured"]["rounds"] in (30, 60)
    assert found["sample_ns"] > 0
    assert found["surroundings"]["threads"] >= 1
    assert (tmp_path / "found.csv").read_text().startswith("source,")
