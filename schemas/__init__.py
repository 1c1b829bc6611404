"""The contract between writer and reader: standard library, NumPy and google-crc32c only."""

if __name__ != "halofeed.schemas":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part schemas: write import halofeed.schemas")
