"""Trainers' own loaders beside ours, for into_trainers.py: a module for each trainer, with `cases(folder)`."""
