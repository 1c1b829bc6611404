"""The only way to reach files that may be remote: local disk, S3, Google Cloud Storage, web servers, and others."""

if __name__ != "halofeed.storage":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part storage: write import halofeed.storage")
