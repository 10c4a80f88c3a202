"""Real files come through: the original unharmed, the edits taken out give it back, a second pass
changes nothing. `benchmarks/patching.py` does the same to 500 and more."""

from collections import Counter
from pathlib import Path

import pytest
from patch_trial import file_faults, real_files


@pytest.mark.reliability
def test_real_files_are_never_harmed(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    faults = [
        f"{path}: {fault}"
        for path in real_files(60, 4_000)  # larger ones are the benchmark's: it takes minutes
        for fault in file_faults(path, tmp_path, counts)
    ]
    assert not faults
    assert counts["as it is: files"] == 60
    assert counts["edits done"] > 5 * counts["edits refused"]
