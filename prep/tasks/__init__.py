"""What records are for: classes and their numbers, splits."""
