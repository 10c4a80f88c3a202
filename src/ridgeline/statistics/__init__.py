"""Statistics of timings: summary, steady state, cost laws, and the comparison of variants.

The package uses numpy only, no clock and no torch. Samples come in as numbers in the order they
were taken, and records go out.
"""
