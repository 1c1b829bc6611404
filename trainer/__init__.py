"""Training steps on a spatial partition, in JAX: an optional extra (`pip install halofeed[train]`)."""

if __name__ != "halofeed.trainer":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part trainer: write import halofeed.trainer")
