"""The process and the machine: signals, files, locks, memory, threads and errors of the operating system."""
