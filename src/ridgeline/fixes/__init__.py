"""The fixes that a specialist would try. Each is applied to a running program from outside, and
written into its source."""
