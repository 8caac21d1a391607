"""Saved runs, and their answers: calibrated probabilities, completions, new facts, labelled triples, pictures."""
