"""Several ranks of one job: their collectives matched, their clocks aligned, the late one named."""
