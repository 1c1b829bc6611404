"""Server of the records of a data set on loopback: `halofeed report --serve`."""
