"""What comes in: files wherever they are, references to them, and what they may take of memory."""
