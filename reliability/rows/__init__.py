"""One row of the proof a file: `run(asked) -> list[Row]`."""
