"""An edit that cannot be carried out safely."""


class Cannot(Exception):
    """The message says why, in a clause a person can read."""

    @property
    def why(self) -> str:
        return str(self)
