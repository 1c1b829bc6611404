"""Pure functions from source files to examples: no Beam, no TensorFlow, no JAX."""

if __name__ != "halofeed.prep":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part prep: write import halofeed.prep")
