"""Which options a conversion has."""
