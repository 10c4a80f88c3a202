"""One rule a file: `RULE` says what it asks, `look(case)` answers. See `ridgeline.diagnosis.rule`.

A file whose name begins with an underscore is no rule: what several rules of a family share.
"""
