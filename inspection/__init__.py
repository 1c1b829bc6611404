"""What a person looks at: whether a data set is sound, and what is in it."""
