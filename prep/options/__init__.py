"""Options of a conversion and the rules of each kind of image."""
