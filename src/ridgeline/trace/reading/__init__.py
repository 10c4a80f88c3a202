"""From a file to a `Trace`: source (bytes) → document (where the events are) → decoder (columns)
→ tables, and a Parquet cache beside it. `reader.read` is the way in."""
