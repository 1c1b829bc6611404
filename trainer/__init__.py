"""Training steps on a spatial partition, in JAX: an optional extra (`pip install halofeed[train]`)."""

if __name__ != "halofeed.trainer":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part trainer: write import halofeed.trainer")
