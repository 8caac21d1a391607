"""`export`: each format is read back, word2vec by gensim too."""

from urllib.parse import unquote

import numpy as np
import pytest

import cardkge
from cardkge import CardkgeError
from cardkge_tools.graph.exchange import export, word2vec_name

NAMES = ["anna", "Björn Ek", "50%", "%20", " ends ", "a b", "d_e"]


class OneRun:
    """What of a run is exported, with chosen numbers."""

    entities, relations = NAMES, ["knows", "lives in"]

    def __init__(self, name="ComplEx", dtype="float32"):
        self.model = getattr(cardkge, name)(len(NAMES), 2, dim=3, seed=4, dtype=dtype)

    def best_model(self):
        return self.model


def test_names_of_word2vec():
    assert [word2vec_name(name) for name in NAMES[1:5]] == ["Björn%20Ek", "50%25", "%2520", "%20ends%20"]
    assert [unquote(word2vec_name(name)) for name in [*NAMES, "a  é%", "日 本"]] == [*NAMES, "a  é%", "日 本"]
    assert word2vec_name("日\u3000本") == "日%E3%80%80本"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_word2vec(tmp_path, dtype):
    run = OneRun(dtype=dtype)
    (path,) = export(run, "word2vec", tmp_path / "vectors.txt")
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert lines[0] == "7 6" and lines[2].startswith("Björn%20Ek ") and len(lines) == 8
    rows = np.array([line.split(" ")[1:] for line in lines[1:]], dtype)
    assert (rows == run.model.params["entity"]).all()  # every digit


def test_gensim_reads_word2vec(tmp_path):
    models = pytest.importorskip("gensim.models")
    run = OneRun()
    (path,) = export(run, "word2vec", tmp_path / "vectors.txt")
    vectors = models.KeyedVectors.load_word2vec_format(path)
    assert [unquote(word) for word in vectors.index_to_key] == NAMES
    assert (vectors["Björn%20Ek"] == run.model.params["entity"][1]).all()


def test_tsv(tmp_path):
    run = OneRun("DistMult")
    paths = export(run, "tsv", tmp_path / "tables")
    assert paths == [str(tmp_path / "tables" / name) for name in ("entities.tsv", "relations.tsv")]
    for path, names, rows in zip(paths, (NAMES, run.relations), run.model.params.values()):
        with open(path, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split("\t") for line in file]
        assert [line[0] for line in lines] == names
        assert (np.array([line[1:] for line in lines], np.float32) == rows).all()


def test_npz(tmp_path):
    run = OneRun("ERMLP")
    (path,) = export(run, "npz", tmp_path / "model.npz")
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {"entity_names", "relation_names", "entity", "relation", "hidden", "output"}
        assert arrays["entity_names"].tobytes().decode().split("\n") == [*NAMES, ""]
        assert all((arrays[name] == array).all() for name, array in run.model.params.items())


def test_tensorboard(tmp_path):
    run = OneRun()
    paths = export(run, "tensorboard", tmp_path / "projector")
    assert [path.rpartition("/")[2] for path in paths] == ["tensors.tsv", "metadata.tsv"]
    rows = np.loadtxt(paths[0], delimiter="\t", dtype=np.float32)
    assert (rows == run.model.params["entity"]).all()
    assert (tmp_path / "projector" / "metadata.tsv").read_text().split("\n") == [*NAMES, ""]  # no header: one column


def test_reciprocal_relations_have_names(tmp_path):
    run = OneRun("DistMult")
    run.model.params["relation"] = np.concatenate([run.model.params["relation"]] * 2)
    export(run, "tsv", tmp_path)
    names = [line.split("\t")[0] for line in (tmp_path / "relations.tsv").read_text().splitlines()]
    assert names == ["knows", "lives in", "^knows", "^lives in"]


def test_faults(tmp_path):
    with pytest.raises(CardkgeError, match=r"format 'hdf5': expected one of word2vec, tsv, npz, tensorboard"):
        export(OneRun(), "hdf5", tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(CardkgeError, match=r"cannot make .*file"):
        export(OneRun(), "tsv", tmp_path / "file")


def test_a_file_that_is_replaced_is_named(tmp_path, capsys):
    for form in ("word2vec", "npz", "tsv"):
        paths = export(OneRun(), form, tmp_path / form)
        assert "is replaced" not in capsys.readouterr().err
        export(OneRun(), form, tmp_path / form)
        said = capsys.readouterr().err
        assert all(f"{path}: the file that was there is replaced" in said for path in paths)
