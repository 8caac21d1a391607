"""What stands around the paper: a room for each thing. docs/ARCHITECTURE.md is the map."""

SPLITS = ("train", "valid", "test")
