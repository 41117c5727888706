"""Translation of corpora in many files (shards), by one process or by many machines."""
