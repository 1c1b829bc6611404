"""What users would train instead, each a script for an environment without halofeed: TASK OUT --minutes M --seed N."""
