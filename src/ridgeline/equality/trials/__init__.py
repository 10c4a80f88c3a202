"""Whether a changed program computes what the unchanged one does: pure functions on trials.

Knows no torch. `band` says how far a candidate may lie from the baseline,
`compare` whether it does.
"""
