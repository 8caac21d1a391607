"""Saved runs, and what they answer: calibrated probabilities, completions, new facts, labelled triples, pictures."""
