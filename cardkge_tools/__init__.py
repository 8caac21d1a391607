"""What stands around the paper: a room for each thing. docs/ARCHITECTURE.md is the map."""

SPLITS = ("train", "valid", "test")
TEXTS = ("bounds.tsv", "types.tsv", "prefixes.tsv")  # of a run, beside the others
RUN_FILES = ("config.json", "history.csv", *TEXTS, "model.npz", "calibration.json", "metrics.json")
