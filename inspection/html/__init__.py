"""HTML reports of data sets, plans and training runs, each one self-contained file."""
