"""Readers of clips: videos, animations and folders of frames."""
