"""The file's own idea of equal: `check(baseline_output, candidate_output)`."""

from collections.abc import Sequence

from ridgeline.equality.calls.leaf import Leaf
from ridgeline.equality.calls.observed import Evidence
from ridgeline.equality.calls.outputs import Outputs, put_together
from ridgeline.errors import TargetError
from ridgeline.harness.usercode.workload import Check


class Asked:
    """A check, asked about the outputs of each call."""

    def __init__(self, check: Check, baseline: Evidence, candidate: Evidence) -> None:
        self._check = check
        self._calls = list(zip(baseline.outputs, candidate.outputs, strict=False))

    def cannot(self) -> str:
        """Why the check cannot be asked; "" where it can."""
        if any(not outputs.whole for pair in self._calls for outputs in pair):
            return "the outputs are too large to keep whole for a check of its own"
        return ""

    def refuse_senseless(self) -> None:
        """A check that rejects the baseline beside itself is broken, and says nothing."""
        ours = self._calls[0][0]
        words = self._ask(ours, ours, None)
        if words:
            raise TargetError(
                f"the check rejects the baseline's own output beside itself: {words}",
                "check(baseline_output, candidate_output) must accept two equal outputs",
            )

    def objection(self) -> str:
        """What the check has against the candidate; "" where nothing."""
        for turn, (ours, theirs) in enumerate(self._calls):
            words = self._ask(ours, theirs, None)
            if words:
                return words if turn == 0 else f"call {turn + 1}: {words}"
        return ""

    def accepts(self, leaves: Sequence[Leaf]) -> bool:
        """Whether the baseline's first output would pass beside itself with these values in it."""
        ours = self._calls[0][0]
        return not self._ask(ours, ours, tuple(leaves))

    @property
    def first(self) -> Outputs:
        """The baseline's."""
        return self._calls[0][0]

    def _ask(self, ours: Outputs, theirs: Outputs, leaves: tuple[Leaf, ...] | None) -> str:
        """The objection in words."""
        try:
            answer = self._check(put_together(ours), put_together(theirs, leaves))
        except AssertionError as error:
            lines = [line for line in str(error).strip().splitlines() if line.strip()]
            return lines[0][:300] if lines else "an assertion failed"
        except Exception as error:
            return f"it raised {type(error).__name__}: {str(error)[:200]}"
        if isinstance(answer, str):
            return answer[:300]
        if answer is None:
            return ""
        try:
            return "" if bool(answer) else "it returned False"
        except (RuntimeError, ValueError, TypeError):
            return f"it returned a {type(answer).__name__}, neither True nor False"
