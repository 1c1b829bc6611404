"""From one reference to its records: one file per kind, one line each in the table."""
