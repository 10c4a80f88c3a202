"""One analysis a file: a pure function of a trace, its links and a window, giving a record."""
