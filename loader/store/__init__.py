"""Stores of data sets: on local disk, in memory, or in an object store."""
