"""Plans on the shapes and grids of pictures and volumes, before any pixel moves."""
