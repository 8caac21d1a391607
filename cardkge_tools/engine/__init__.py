"""The fast form of the definitions: threads, draws, training steps, ranking by blocks."""
