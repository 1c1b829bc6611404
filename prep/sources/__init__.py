"""Source files, local or remote, and the examples that annotations describe."""
