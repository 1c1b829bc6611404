"""The process and the machine: signals, files, locks, memory, threads, errors of the operating system."""
