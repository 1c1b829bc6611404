"""Training steps on a spatial partition, in JAX: an optional extra (`pip install halofeed[train]`)."""
