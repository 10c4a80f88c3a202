"""From a file to a `Trace`: source (bytes), reader (finds the events), a decoder (compiled or
portable), tables, and a Parquet cache beside the file. `reader.parse` is the way in."""
