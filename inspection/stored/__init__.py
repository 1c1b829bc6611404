"""How the files of a data set that anyone may have made are opened, and what their records hold."""
