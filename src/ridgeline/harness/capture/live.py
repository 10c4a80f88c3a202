"""The session of this process, if there is one."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.harness.capture.session import Session

session: "Session | None" = None
_following = False


def follow_forks() -> None:
    """In a child of the program the session goes quiet. Asked once: it cannot be taken back."""
    global _following
    if not _following:
        os.register_at_fork(after_in_child=_forked)
        _following = True


def _forked() -> None:
    if session is not None:
        session.forked()
