"""How do outputs and truth become numbers to minimize? One file a family."""
