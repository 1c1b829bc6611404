"""What a person looks at: whether a data set is sound, and what is in it.

stored/ opens files and records; facts/ and run/ hold what is known; text/, pictures/ and html/ show it; verify/ checks.
"""
