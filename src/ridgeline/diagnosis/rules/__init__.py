"""One rule a file: `RULE` says what it asks, `look(case)` answers. See `ridgeline.diagnosis.rule`.

A file whose name begins with an underscore holds no rule, but what several rules share.
"""
