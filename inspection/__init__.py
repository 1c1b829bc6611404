"""Views of finished data sets and runs: checks, descriptions, pictures and HTML reports."""

if __name__ != "halofeed.inspection":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part inspection: write import halofeed.inspection")
