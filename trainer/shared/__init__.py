"""What models, tasks and the training loop share: the facts of the data, and what a task is."""
