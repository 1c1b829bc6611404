"""Functions in machine code, built from C when halofeed is installed."""
