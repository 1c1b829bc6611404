"""What is counted of the records while they are made."""
