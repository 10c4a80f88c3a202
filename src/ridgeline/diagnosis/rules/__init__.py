"""The rules: a file for each noun. See `ridgeline.diagnosis.rule`.

A file whose name begins with an underscore holds no rule, but what several files of rules share.
"""
