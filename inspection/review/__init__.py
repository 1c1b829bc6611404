"""Search of a data set for what may hurt training: copies, leaks between splits, outliers, likely label faults."""
