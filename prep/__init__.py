"""Pure functions from source files to examples: no Beam, no TensorFlow, no JAX."""

if __name__ != "halofeed.prep":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part prep: write import halofeed.prep")
