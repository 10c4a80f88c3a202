"""The session of this process, if there is one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.capture.session import Session

session: "Session | None" = None
