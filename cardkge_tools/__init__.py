"""What stands around the paper: a room for each thing. docs/ARCHITECTURE.md is the map."""

SPLITS = ("train", "valid", "test")
SPLIT_FILES = {  # what the file of a split may be called
    split: [split + kind + zipped for kind in (".txt", ".tsv") for zipped in ("", ".gz")] for split in SPLITS
}
TRIPLE_FILES = ("triples.tsv", "triples.txt", "triples.tsv.gz", "triples.txt.gz")  # of a graph before its split
TEXTS = ("bounds.tsv", "types.tsv", "prefixes.tsv")  # of a run, beside the others
RUN_FILES = ("config.json", "history.csv", *TEXTS, "model.npz", "calibration.json", "metrics.json")
