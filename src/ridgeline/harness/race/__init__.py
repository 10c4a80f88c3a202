"""The race: candidates timed in one process of the program, switched at the ends of its steps."""
