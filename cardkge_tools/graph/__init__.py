"""Graphs: read, spelt, imported, split, exported; RDF; their bounds."""
