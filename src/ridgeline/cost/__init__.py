"""What a model costs before it runs: formulas, counting, memory prediction, studies."""
