"""Changes tried on a program, kept where they are faster and equal, and confirmed as a whole."""
