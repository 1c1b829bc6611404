"""Views of finished data sets and runs: checks, descriptions, pictures and HTML reports."""
