"""How often the judgement is wrong, on this machine and on simulated noise."""
