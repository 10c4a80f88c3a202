"""The cost of a model before it runs: formulas, counting, memory prediction, and studies."""
