"""What a workload computes, and whether another computes the same: evidence, and its judgement."""
