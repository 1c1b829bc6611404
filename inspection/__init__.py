"""Views of finished data sets and runs: checks, descriptions, pictures and HTML reports."""

if __name__ != "halofeed.inspection":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part inspection: write import halofeed.inspection")
