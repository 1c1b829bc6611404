"""Conversion of data sets as a Beam job, which shuffles references and writes one shard with each call."""

if __name__ != "halofeed.pipelines":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part pipelines: write import halofeed.pipelines")
