"""The contract between writer and reader: standard library, NumPy and google-crc32c only."""
