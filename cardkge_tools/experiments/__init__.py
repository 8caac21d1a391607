"""Runs trained, compared and reported: one or many, the paper's tables, controls, the oracle."""
