"""The process and the machine: signals, files, locks, memory, threads and errors of the operating system."""

if __name__ != "halofeed.system":
    # A checkout's root has the parts themselves. A second copy of a module has classes of its own, which no
    # comparison takes for those of the first.
    raise ImportError(f"{__name__} is halofeed's part system: write import halofeed.system")
