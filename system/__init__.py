"""The process and the machine: signals, files, locks, memory, threads and errors of the operating system."""

if __name__ != "halofeed.system":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part system: write import halofeed.system")
