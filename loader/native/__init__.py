"""What is done by machine code."""
