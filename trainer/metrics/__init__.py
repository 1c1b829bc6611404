"""How good are predictions? Counted on the host, over a whole evaluation."""
