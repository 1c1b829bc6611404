"""Conversion of data sets as a Beam job, which shuffles references and writes one shard with each call."""

if __name__ != "halofeed.pipelines":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part pipelines: write import halofeed.pipelines")
