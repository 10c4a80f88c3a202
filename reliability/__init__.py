"""Proof that a program cannot tell it is run by `ridgeline run`: programs, faults, kills, limits.

    python -m reliability [--row N]… [--only NAME] [--jobs 2]

Each row prints how many cases it ran; a row that ran fewer than it promises is a failure.
"""
