"""Ctrl-C reaches the tests wherever they run: a shell starts what it puts in the background with
that signal ignored, and so would be every program they start."""

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
