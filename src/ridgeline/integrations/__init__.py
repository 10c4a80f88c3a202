"""Ways in that are not the command line: a block of code, a notebook cell."""
