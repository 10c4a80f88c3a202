"""A trace for other tools: speedscope, Perfetto, Parquet, SQL."""
