"""The seams of a program that does not train: what its modules return is seen as well, which is all
that such a program computes."""

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.trials.session import TrialSession


class OutputSeams(Seams):
    def __init__(self, torch: Any, session: TrialSession) -> None:
        super().__init__(torch, session)
        self._returned = session.call_returned

    def _around(
        self,
        owner: Any,
        name: str,
        enter: Callable[..., Any],
        leave: Callable[[Any], None],
        passing: Sequence[str],
        see: Callable[..., Any] | None = None,
    ) -> None:
        if name == "__call__":
            see = self._returned
        super()._around(owner, name, enter, leave, passing, see)
