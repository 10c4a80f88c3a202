"""Says what can go wrong, as the person at the terminal should read it.

    RidgelineError            something could not be done                 exit 4
    ├── UsageError            what was asked for makes no sense           exit 2
    ├── TargetError           the user's own code could not be loaded/run exit 4
    ├── OutOfMemoryError      it does not fit here                        exit 4
    └── DataDependentError    needs real values where there are none      exit 4

Each message is one sentence with the cause; `hint` says what to try. They are caught once, in
cli. Exit codes: 0 ok, 2 usage, 3 a gate failed, 4 nothing could be measured.
"""


class RidgelineError(Exception):
    """Something could not be done; the message says what and why."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(hint)  # which a traceback shows, in a notebook too


class UsageError(RidgelineError):
    """The command or its arguments make no sense."""

    exit_code = 2


class TargetError(RidgelineError):
    """The user's model could not be built or run."""


class OutOfMemoryError(RidgelineError):
    """The model, or a step of it, does not fit on this machine."""


class DataDependentError(RidgelineError):
    """The program asks for a tensor's value where tensors carry none (fake or meta)."""
