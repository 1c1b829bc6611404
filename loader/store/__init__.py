"""Where the bytes of a data set are: on local disk, in memory, in an object store; one `Store` for each."""
