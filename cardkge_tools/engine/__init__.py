"""What the definitions of cardkge.py are, fast: threads, draws, training steps, ranking by blocks."""
