"""Records as small pictures."""
