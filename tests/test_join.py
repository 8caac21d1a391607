"""Several runs as one: its scores are the means of theirs."""

import numpy as np
import pytest
from conftest import invoke, ok, one_error

import cardkge

SMALL = ["--loss", "softmax", "--epochs", "2", "--dim", "3", "--validate-every", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of a small graph: two of DistMult, one of ComplEx, one of ER-MLP, one without reciprocal relations."""
    folder = tmp_path_factory.mktemp("join")
    (folder / "data").mkdir()
    rng = np.random.default_rng(3)
    lines = sorted({(h, r, t) for h, r, t in rng.integers((12, 3, 12), size=(120, 3)).tolist()})
    lines = [f"e{h}\tr{r}\te{t}\n" for h, r, t in (lines[i] for i in rng.permutation(len(lines)))]
    for name, part in (("train", lines[:70]), ("valid", lines[70:85]), ("test", lines[85:])):
        (folder / "data" / f"{name}.txt").write_text("".join(part))
    data = ["--data", folder / "data", "--no-calibrate", *SMALL]
    for name, options in (
        ("d0", "--model distmult"), ("d1", "--model distmult --seed 1 --dim 4"), ("c", "--model complex"),
        ("e", "--model ermlp"), ("plain", "--no-reciprocal"), ("other", "--bounds mined"),
    ):  # fmt: skip
        ok("train", *data, "--out", folder / name, *options.split())
    return folder


@pytest.mark.parametrize("names", [("d0", "d1"), ("d0", "c", "d1")])
def test_scores_are_the_means(folder, names, tmp_path):
    result = ok("join", *(folder / name for name in names), "--out", tmp_path / "joined")
    assert "filtered" in result.stdout and "calibrated" in result.output
    joined, *runs = (cardkge.load_run(path) for path in (tmp_path / "joined", *(folder / name for name in names)))
    assert joined.settings.model == ("complex" if "c" in names else "distmult")
    h, r, t = np.random.default_rng(0).integers((12, 6, 12), size=(50, 3)).T  # relation rows 3 to 5 are of the inverses
    mean = np.mean([run.best_model().score(h, r, t) for run in runs], axis=0)
    np.testing.assert_allclose(joined.model.score(h, r, t), mean, rtol=1e-5, atol=1e-7)
    assert joined.calibration is not None and joined.metrics["filtered"]
    answer = ok("predict", tmp_path / "joined", "--head", "e1", "--relation", "r0")
    assert "probability" in answer.stdout and not answer.stderr
    for arguments in (
        ("--final", tmp_path / "joined", "--out", tmp_path / "final"),
        ("--resume", "--out", tmp_path / "joined"),
    ):
        assert "and not trained" in one_error(invoke("train", *arguments))
    assert "join trained runs" in one_error(
        invoke("join", tmp_path / "joined", folder / "c", "--out", tmp_path / "more")
    )


def test_the_data_must_be_that_of_the_runs(folder, tmp_path):
    lines = (folder / "data" / "train.txt").read_text().splitlines(keepends=True)
    for name, train in (("turned", lines[::-1]), ("cut", lines[:-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("".join(train))
        for split in ("valid", "test"):
            (tmp_path / name / f"{split}.txt").write_bytes((folder / "data" / f"{split}.txt").read_bytes())
    runs = folder / "d0", folder / "c"
    ok("join", *runs, "--out", tmp_path / "same")
    ok("join", *runs, "--out", tmp_path / "joined", "--data", tmp_path / "turned")  # the same facts
    one, other = (cardkge.load_run(tmp_path / name).metrics for name in ("same", "joined"))
    assert one == other
    error = one_error(invoke("join", *runs, "--out", tmp_path / "no", "--data", tmp_path / "cut"))
    assert "the data has changed" in error and not (tmp_path / "no").exists()


def test_what_cannot_be_joined(folder, tmp_path):
    def error(*names):
        return one_error(invoke("join", *(folder / name for name in names), "--out", tmp_path / "joined"))

    assert "two runs or more" in error("d0")
    assert "two runs or more" in error("d0", "d0")
    assert "its model is ermlp" in error("d0", "e")
    assert "its reciprocal rows are not" in error("c", "plain")
    assert "its bounds are not" in error("c", "other")
    ok("train", "--final", folder / "c", "--out", tmp_path / "final")
    assert "trained on valid too" in error("c", tmp_path / "final")
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "mine.txt").write_text("x")
    assert "is not empty and holds no run" in error("d0", "d1")
    assert (tmp_path / "joined" / "mine.txt").read_text() == "x"
