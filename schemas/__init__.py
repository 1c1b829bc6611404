"""The contract between writer and reader: standard library, NumPy and google-crc32c only."""

if __name__ != "halofeed.schemas":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part schemas: write import halofeed.schemas")
