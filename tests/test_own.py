"""Models of one's own: a class in a file trains, ranks and resumes like the three; what is wrong is one line."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import draws_of_train, write_ring
from gradcheck import check_gradients

import cardkge
import cli
from cardkge_tools.engine import own, ranking

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "course" / "solutions"
CLASSES = {"transe": "TransE", "rescal": "RESCAL", "hole": "HolE"}

TOY = '''
import numpy as np
import cardkge


class Toy(cardkge.Model):
    """DistMult, written anew."""

    def phi(self, h, r, t):
        return (h * r * t).sum(-1)

    def d_phi(self, h, r, t, upstream, gradients):
        u = upstream[..., None]
        return u * r * t, u * h * t, u * h * r

    def query_tails(self, h, r):
        return h * r

    def query_heads(self, r, t):
        return r * t

    def match(self, query, rows):
        return query @ rows.T
'''


PHI, DEF = "return (h * r * t).sum(-1)", "    def phi"  # parts of it that tests change
INIT = "    def __init__(self, n, m{}):\n        {}\n\n    def phi"


@pytest.fixture(params=CLASSES)
def solution(request):
    """The name in settings of one of the course's models."""
    return cardkge.use_model(f"{SOLUTIONS / request.param}.py:{CLASSES[request.param]}")


def written(tmp_path, old="", new="", text=TOY):
    """PATH.py:Toy of a file with this text, one part of it changed."""
    assert old in text
    path = tmp_path / "toy.py"
    path.write_text(text.replace(old, new, 1) if old else text, encoding="utf-8")
    return f"{path}:Toy"


def ring(tmp_path):
    return cardkge.load_dataset(write_ring(tmp_path / "ring"))


def run_cli(*arguments):
    return CliRunner().invoke(cli.main, list(map(str, arguments)))


def line_of(found, code=1):
    """The one line of an error."""
    assert found.exit_code == code, found.output
    lines = found.stderr.strip().splitlines()
    assert lines[-1].lower().startswith("error: ") and "Traceback" not in found.output
    assert code == 2 or len(lines) == 1, found.stderr
    return lines[-1]


# --- the course's models


def loops(name, h, r, t):
    """The score of one triple from its rows, by loops."""
    k = len(h)
    if name == ":TransE":
        return -(sum((h[i] + r[i] - t[i]) ** 2 for i in range(k)) ** 0.5)
    if name == ":RESCAL":
        return sum(h[i] * r[i * k + j] * t[j] for i in range(k) for j in range(k))
    return sum(r[j] * h[i] * t[(i + j) % k] for i in range(k) for j in range(k))


@pytest.mark.parametrize("dim", [1, 4, 5])
def test_scores_equal_loops(solution, dim):
    model = cardkge.MODELS[solution](7, 3, dim=dim, seed=1, dtype="float64")
    rng = np.random.default_rng(0)
    h, r, t = rng.integers(7, size=20), rng.integers(3, size=20), rng.integers(7, size=20)
    e, w = model.params["entity"], model.params["relation"]
    expected = [loops(solution, e[a], w[b], e[c]) for a, b, c in zip(h, r, t)]
    np.testing.assert_allclose(model.score(h, r, t), expected, rtol=0, atol=1e-12)
    every = [[loops(solution, e[a], w[b], e[c]) for c in range(7)] for a, b in zip(h, r)]
    np.testing.assert_allclose(model.score_tails(h, r), every, rtol=0, atol=1e-12)
    every = [[loops(solution, e[a], w[b], e[c]) for a in range(7)] for b, c in zip(r, t)]
    np.testing.assert_allclose(model.score_heads(r, t), every, rtol=0, atol=1e-12)


def test_gradients_of_score_and_regulariser(solution):
    model = cardkge.MODELS[solution](6, 2, dim=4, seed=2, dtype="float64")
    rng = np.random.default_rng(1)
    h, r, upstream = rng.integers(6, size=15), rng.integers(2, size=15), rng.normal(size=15)
    t = (h + rng.integers(1, 6, size=15)) % 6
    gradients = model.gradients(h, r, t, upstream)
    check_gradients(lambda: np.sum(upstream * model.score(h, r, t)), model.params, gradients)
    given = model, np.zeros((2, 2)), 1, [0, 2], [1, 3, 4], [1.0, 2.0, 0.5]
    gradients = cardkge.cardinality_penalty(*given)[1]
    check_gradients(lambda: cardkge.cardinality_penalty(*given)[0], model.params, gradients)


def test_transe_has_no_gradient_where_the_norm_has_none():
    model = cardkge.MODELS[cardkge.use_model(f"{SOLUTIONS / 'transe.py'}:TransE")](2, 1, dim=3, dtype="float64")
    model.params["relation"][...] = 0
    gradients = model.gradients([1], [0], [1], [1.0])
    assert all(not array.any() for array in gradients.values())


def test_scores_are_pykeens(solution):
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install .[peers]")
    modules = pytest.importorskip("pykeen.nn.modules", reason="needs PyKEEN: pip install .[peers]")
    model = cardkge.MODELS[solution](9, 2, dim=6, seed=3, dtype="float64")
    ids = np.array([[0, 0, 2], [3, 1, 3], [5, 1, 1], [5, 0, 8]]).T
    h, r, t = (torch.as_tensor(rows) for rows in model.rows(*ids))
    theirs = {
        ":TransE": lambda: modules.TransEInteraction(p=2)(h, r, t),
        ":RESCAL": lambda: modules.RESCALInteraction()(h, r.reshape(4, 6, 6), t),
        ":HolE": lambda: modules.HolEInteraction()(h, r, t),
    }[solution]()
    np.testing.assert_allclose(model.score(*ids), theirs.numpy(), rtol=0, atol=1e-12)


# --- training, ranks, sums


@pytest.mark.parametrize("extra", [
    {}, {"loss": "hinge", "optimizer": "sgd", "learning_rate": 0.05, "decay": 0.1}, {"l2": 0.01, "project": "none"},
    {"bounds": "mined", "penalty_weight": 0.1, "sampling": "importance", "subjects": 5, "objects": 9},
    {"bounds": "mined", "penalty_weight": 0.1, "sampling": "bernoulli", "filter_negatives": True},
])  # fmt: skip
def test_a_run_is_the_plain_algorithm_1(solution, tmp_path, extra):
    data = ring(tmp_path)
    settings = cardkge.Settings(model=solution, data=str(data.folder), dim=4, epochs=3, **extra)
    run = cardkge.new_run(settings, data)
    plain = cardkge.new_model(settings, data.n_entities, data.n_relations)
    draws = draws_of_train(plain, data.train, settings, run.bounds)
    history = cardkge.algorithm_1(plain, data.train, settings, run.bounds, draws)
    assert cardkge.train(run, data, threads=2) == "finished"
    for name, array in plain.params.items():
        assert np.array_equal(run.model.params[name], array), name
    for record, expected in zip(run.history, history):
        assert {name: record[name] for name in expected} == expected


@pytest.mark.parametrize(
    "extra", [{}, {"no_loops": True, "n3": 0.01}, {"softmax_candidates": 20, "relation_weight": 0.5}]
)
def test_softmax_is_the_plain_loop(solution, tmp_path, extra):
    """In another order of summation, so not to the bit."""
    data = ring(tmp_path)
    settings = cardkge.Settings(
        model=solution, loss="softmax", dim=4, epochs=2, batch_size=60, dtype="float64", accumulator=0.1, **extra
    )
    run = cardkge.new_run(settings, data)
    assert run.settings.reciprocal is False  # a class of one's own need not know of it
    plain = cardkge.new_model(run.settings, data.n_entities, data.n_relations)
    cardkge.softmax_loop(plain, data.train, run.settings, run.bounds)
    cardkge.train(run, data, threads=1)
    for name, array in plain.params.items():
        np.testing.assert_allclose(run.model.params[name], array, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_copy_of_distmult_is_distmult(tmp_path):
    """By its own methods, and by the kernels: the same training, ranks, sums and completions."""
    data = ring(tmp_path)
    own_name = cardkge.use_model(written(tmp_path))
    settings = {"dim": 5, "epochs": 4, "dtype": "float64", "bounds": "mined", "penalty_weight": 0.1}
    runs = [cardkge.new_run(cardkge.Settings(model=name, **settings), data) for name in (own_name, "distmult")]
    for run in runs:
        cardkge.train(run, data)
    mine, kernels = (run.model for run in runs)
    for name in kernels.params:
        np.testing.assert_allclose(mine.params[name], kernels.params[name], rtol=1e-9, atol=1e-12)
        mine.params[name][...] = kernels.params[name]
    for name, ranks in cardkge.rank_triples(kernels, data.test, data.known).items():
        assert np.array_equal(cardkge.rank_triples(mine, data.test, data.known)[name], ranks)
    for a, b in zip(*(cardkge.cardinality_violations(model, runs[0].bounds, data.train) for model in (mine, kernels))):
        np.testing.assert_allclose(a["sums"], b["sums"], rtol=1e-12)
    for given in ({"head": 3}, {"tail": 7}):
        a, b = (cardkge.completions(model, 1, **given) for model in (mine, kernels))
        assert a[0] == b[0]
        np.testing.assert_allclose(a[1:], b[1:], rtol=1e-12)


@pytest.mark.parametrize("ties", cardkge.TIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranks_are_the_plain_ranks_with_ties(solution, tmp_path, ties, dtype, monkeypatch):
    """Every entity has a twin, so that each answer ties with one; match and phi round apart."""
    data = ring(tmp_path)
    model = cardkge.MODELS[solution](data.n_entities, data.n_relations, dim=6, seed=4, dtype=dtype)
    model.params["entity"][1::2] = model.params["entity"][::2]
    triples = data.test[:12]
    found = cardkge.rank_triples(model, triples, data.known, ties)
    assert np.array_equal(found["filtered"], cardkge.filtered_ranks(model, triples, data.known, ties))
    assert np.array_equal(found["raw"], cardkge.filtered_ranks(model, triples, (), ties))
    monkeypatch.setattr(ranking, "LEAST", 1)
    monkeypatch.setattr(ranking, "MOST", 1)
    again = cardkge.rank_triples(model, triples, data.known, ties, threads=2)
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_nan_has_no_rank(tmp_path):
    data = ring(tmp_path)
    name = cardkge.use_model(written(tmp_path))
    model = cardkge.MODELS[name](data.n_entities, data.n_relations, dim=3, dtype="float32")
    model.params["entity"] *= np.float32(1e20)
    model.params["relation"] *= np.float32(1e20)
    with warnings.catch_warnings(), pytest.raises(cardkge.CardkgeError, match="NaN"):
        warnings.simplefilter("ignore", RuntimeWarning)  # also of the threads
        cardkge.rank_triples(model, data.test, threads=1)


# --- commands


def test_the_life_of_a_run(tmp_path):
    """Trained, resumed to the same bits, evaluated, asked; never opened without the class."""
    data, spec = write_ring(tmp_path / "ring"), written(tmp_path)
    common = ["--data", data, "--dim", 4, "--model", spec, "--bounds", "mined", "--seed", 3]
    assert run_cli("train", *common, "--epochs", 6, "--out", tmp_path / "whole").exit_code == 0
    assert run_cli("train", *common, "--epochs", 2, "--out", tmp_path / "part").exit_code == 0
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["settings"]["model"] == ":Toy"
    names = [path for path in (tmp_path / "whole").iterdir() if b"toy.py" in path.read_bytes()]
    assert not names, "a run folder names no file to execute"
    resumed = run_cli("train", "--resume", "--out", tmp_path / "part", "--epochs", 6, "--model", spec)
    assert resumed.exit_code == 0, resumed.output
    runs = [cardkge.load_run(tmp_path / name) for name in ("whole", "part")]
    assert all(np.array_equal(runs[0].model.params[n], runs[1].model.params[n]) for n in runs[0].model.params)
    asked = {
        "evaluate": [], "violations": [], "history": [],
        "predict": ["--head", "e3", "--relation", "r0"], "complete": ["--out", tmp_path / "new.tsv"],
    }  # fmt: skip
    for command, options in asked.items():
        found = run_cli(command, tmp_path / "whole", *options, "--model", spec)
        assert found.exit_code == 0, found.output
    del cardkge.MODELS[":Toy"]
    for command, options in asked.items():
        line = line_of(run_cli(command, tmp_path / "whole", *options))
        assert "--model PATH.py:Toy" in line and "config.json" in line
    assert "--model PATH.py:Toy" in line_of(run_cli("train", "--resume", "--out", tmp_path / "whole"))


def test_a_class_of_other_shapes_does_not_open_a_run(tmp_path):
    data, spec = write_ring(tmp_path / "ring"), written(tmp_path)
    assert (
        run_cli(
            "train", "--data", data, "--dim", 4, "--model", spec, "--epochs", 1, "--out", tmp_path / "run"
        ).exit_code
        == 0
    )
    wide = "class Toy(cardkge.Model):\n    row_length = 2\n"
    line = line_of(
        run_cli("evaluate", tmp_path / "run", "--model", written(tmp_path, "class Toy(cardkge.Model):\n", wide))
    )
    assert "params.entity" in line and "expected" in line


@pytest.mark.parametrize("old, new, words", [
    ("    def match(self, query, rows):\n        return query @ rows.T\n", "", "has no method match; a model needs"),
    ("return (h * r * t).sum(-1)", "return (h * r * t).sum()", "phi of rows (3, 4), (3, 4), (3, 4) has shape ()"),
    ("return query @ rows.T", "return rows @ query.T", "match of queries (3, 4) with 5 rows has shape (5, 3)"),
    ("return h * r", "return (h * r).sum(0)", "query_tails of rows (3, 4), (3, 4), (3, 4) has shape (4,)"),
    ("return u * r * t, u * h * t, u * h * r", "return u * r * t, u * h * t", "expected three arrays"),
    ("return u * r * t,", "return (u * r * t).sum(-1),", "d_h has shape (3,), expected float64 of shape (3, 4)"),
    ("u = upstream[..., None]", "u = upstream[:, None, None]", "d_phi"),
    ("return r * t", "return r * oops", "NameError in line 20: name 'oops' is not defined"),
    ("return r * t", "return r *", "SyntaxError in line 20"),
    ("import numpy as np", "import nowhere_to_be_found", "ModuleNotFoundError in line 2"),
    ("class Toy(cardkge.Model):", "class Toy:", "is no subclass of cardkge.Model"),
    ("class Toy(", "class Other(", "it has no class Toy"),
    (DEF, "    shapes = {'entity': (5, 4)}\n\n" + DEF, "shapes['relation'] is (), expected (2, row length)"),
    (DEF, "    shapes = {'entity': (5, 4), 'relation': (2, 4)}\n\n" + DEF, "expected (6, row length)"),
    (DEF, "    shapes = 3\n\n" + DEF, "Toy(5, 2, dim=4, seed=0, dtype='float64'), as every model is made: A"),
    (DEF, "    def encode(self, h, r, t):\n        return h\n\n" + DEF, "Toy.encode gives ndarray, expected three"),
    ("    def match", "    def match(self, query):\n        pass\n\n    def other",
     "Toy.match: TypeError: Toy.match() takes 2"),
    ("def query_heads(self, r, t)", "def query_heads(r, t)", "Toy.query_heads: TypeError: Toy.query_heads() takes 2"),
    # the constructor
    (DEF, INIT.format(", gamma", "pass"), "as every model is made: TypeError: Toy.__init__() got an unexpected"),
    (DEF, INIT.format(", **more", "pass"), "it has no params, n_entities, n_relations, dim, dtype; call super()"),
    (DEF, INIT.format(", **more", "super().__init__(n, m, **more); self.params = {}"), "params have the shapes {}"),
    (DEF, INIT.format(", **more", "super().__init__(n, m, **more); self.params['entity'] = [[0.0] * 4] * n"),
     "params['entity'] is a list, expected an array of float64"),
    (DEF, INIT.format(", **more", "super().__init__(n, m, **more | {'dtype': 'float32'})"),
     "params['entity'] has dtype float32, expected an array of float64"),
    # what the methods give
    (PHI, PHI.removeprefix("return "), "phi of rows (3, 4), (3, 4), (3, 4) is None, expected float64 of"),
    (PHI, PHI + ".tolist()", "is a list, expected float64 of shape (3,)"),
    (PHI, PHI + ".astype(int)", "has dtype int64, expected float64"),
    (PHI, PHI + " + 0j", "has dtype complex128, expected float64"),
    (PHI, PHI + ".astype('float32')", "has dtype float32, expected float64"),
    ("return query @ rows.T", "return (query @ rows.T).astype('float64')",
     "has dtype float64, expected float32 of shape (3, 6)"),
    ("return u * r * t, u * h * t, u * h * r", "return u * r * t, u * h * t, (u * h * r).astype('float32')",
     "d_t has dtype float32, expected float64 of shape (3, 4)"),
    (PHI, PHI.replace("(", "np.log((", 1) + ")", "Toy.phi of rows (3, 4), (3, 4), (3, 4) is nan at ["),
    ("return h * r", "return h * r / 0", "Toy.match of queries (3, 4) with 5 rows is "),
    ("return u * r * t,", "return u * r * t * np.nan,",
     "Toy.d_phi of rows (3, 4), (3, 4), (3, 4): d_h is nan at [0, 0]"),
    # what is raised
    ("import numpy as np", "raise RuntimeError('not now')", "toy.py: RuntimeError in line 2: not now"),
    ("import numpy as np", "assert False", "toy.py: AssertionError in line 2"),
    ("import numpy as np", "import sys\nsys.exit(0)", "toy.py: SystemExit in line 3: the program must not end here"),
    ("return r * t", "exit(0)", "Toy.query_heads: SystemExit in line 20: the program must not end here"),
    ("import numpy as np", "\0", "toy.py: SyntaxError"),
    ("return r * t", "return self.query_heads(r, t)", "RecursionError in line 20"),
])  # fmt: skip
def test_what_is_wrong_with_a_class_is_one_line(tmp_path, old, new, words):
    spec = written(tmp_path, old, new)
    for command in (["check", spec], ["train", "--model", spec, "--out", tmp_path / "run"]):
        line = line_of(run_cli(*command))
        assert words in line and "toy.py" in line, line
    assert not (tmp_path / "run").exists()


def test_names_that_name_no_class(tmp_path):
    assert "no such file" in line_of(run_cli("check", tmp_path / "absent.py:Toy"))
    assert "expected PATH.py:CLASS" in line_of(run_cli("check", tmp_path / "absent.py"))
    assert "expected PATH.py:CLASS" in line_of(run_cli("train", "--model", "toy:Toy"))
    assert "distmult" in line_of(run_cli("train", "--model", "transe"), code=2)
    assert "PATH.py:CLASS" in line_of(run_cli("check", "transe"))


def test_runs_side_by_side_are_of_the_three(tmp_path):
    found = run_cli("tune", "--model", written(tmp_path), "--grid", "dim=2,3", "--out", tmp_path / "tune")
    assert "use train" in line_of(found, code=2) and not (tmp_path / "tune").exists()


# --- check


@pytest.mark.parametrize("name", ["distmult", "complex", "ermlp"])
def test_check_passes_the_three(name):
    found = run_cli("check", name)
    assert found.exit_code == 0 and [line.split()[0] for line in found.stdout.splitlines()] == ["ok"] * 3


def test_check_passes_the_course(solution):
    assert [fault for _, fault in own.check_model(solution)] == [None] * 3


@pytest.mark.parametrize("old, new, failed, words", [
    ("u * h * r\n", "u * h * r * 1.0005\n", ["d_phi", "d_pairs"], "d entity[0, 0] is "),
    ("u * h * t,", "u * h * h,", ["d_phi", "d_pairs"], "d relation["),
    ("return r * t\n", "return r * t + 1e-6\n", ["the"], "match(query_heads(r, t), h)"),
    ("return h * r\n", "return h + r\n", ["the", "d_pairs"], "match(query_tails(h, r), t)"),
    ("return (h * r * t).sum(-1)", "return (h * r * t).sum(-1) * (np.nan if len(h) > 9 else 1)", ["d_phi"], "nan"),
    ("return h * r\n", "return h * (r if len(h) < 9 else oops)\n", ["the"],
     "toy.py: Toy.query_tails: NameError in line 17: name 'oops' is not defined"),
    ("    def match", "    def d_pairs(self, h, r, t, u, gradients):\n        return h, r, t\n\n    def match",
     ["d_pairs"], "d entity["),
])  # fmt: skip
def test_check_catches_planted_errors(tmp_path, old, new, failed, words):
    found = run_cli("check", written(tmp_path, old, new))
    lines = found.stdout.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines if line.startswith("wrong")] == failed, found.output
    assert words in found.stdout
    assert f"{len(failed)} of 3 checks failed" in line_of(found)
    if len(failed) == 2 and "oops" not in new:
        refused = line_of(run_cli("train", "--model", f"{tmp_path / 'toy.py'}:Toy", "--out", tmp_path / "run"))
        assert f"{tmp_path / 'toy.py'}: Toy" in refused and not (tmp_path / "run").exists()
        assert words in refused


@pytest.mark.parametrize("raised, words", [
    ("oops", "NameError in line 10: name 'oops' is not defined"),
    ("exit(3)", "SystemExit in line 10: the program must not end here"),
    ("1 / 0", "ZeroDivisionError in line 10: division by zero"),
])  # fmt: skip
def test_what_goes_wrong_in_the_middle_of_a_run_is_one_line(tmp_path, raised, words):
    """Where a class fails with many rows only, which no check has seen: in training, and in the threads that rank."""
    data = write_ring(tmp_path / "ring")
    many = written(tmp_path, "return (h * r * t).sum(-1)", f"return (h * r * t).sum(-1) if len(h) < 15 else {raised}")
    found = run_cli("train", "--data", data, "--dim", 3, "--epochs", 1, "--model", many, "--out", tmp_path / "run")
    assert line_of(found).endswith(f"toy.py: Toy.phi: {words}"), found.output
    good = written(tmp_path)
    common = ["--data", data, "--dim", 3, "--epochs", 1, "--out", tmp_path / "run", "--force"]
    assert run_cli("train", *common, "--model", good).exit_code == 0
    many = written(tmp_path, "return query @ rows.T", f"return query @ rows.T if len(rows) < 15 else {raised}")
    line = line_of(run_cli("violations", tmp_path / "run", "--bounds", "mined", "--model", many))
    assert "toy.py: Toy.match: " in line and words.partition(" in line")[0] in line


def test_the_checker_allows_little():
    """What RTOL lets pass is far below the planted 0.05 %, and the array is put back."""
    x = np.array([1e-9, 0.3, -2.0])
    kept = x.copy()
    right = {"x": np.cos(x)}
    assert own.wrong_gradients(lambda: np.sin(x).sum(), {"x": x}, right) == []
    assert np.array_equal(x, kept)
    for place in range(3):
        changed = {"x": np.cos(x)}
        changed["x"][place] *= 1 + 1e-5
        assert [where for _, where, _, _ in own.wrong_gradients(lambda: np.sin(x).sum(), {"x": x}, changed)] == [
            (place,)
        ]


def test_a_file_is_no_module(tmp_path):
    """It is executed each time, and stands in no table of modules; a folder of its own may hold the same name."""
    cardkge.use_model(written(tmp_path))
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "toy.py", tmp_path / "other" / "toy.py")
    first = cardkge.MODELS[":Toy"]
    own.use_model(f"{tmp_path / 'other' / 'toy.py'}:Toy")
    assert cardkge.MODELS[":Toy"] is not first
    assert not any("toy" in name for name in sys.modules)


def test_a_final_run(tmp_path):
    data, model = write_ring(tmp_path / "ring"), f"{SOLUTIONS / 'transe.py'}:TransE"
    done = run_cli("train", "--data", data, "--model", model, "--dim", 4, "--epochs", 2, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    final = ("train", "--final", tmp_path / "run", "--out", tmp_path / "final", "--model")
    assert "--model cannot change in a final run" in line_of(run_cli(*final, "complex"), code=2)
    done = run_cli(*final, model)
    assert done.exit_code == 0 and "trained on every triple" in done.output
    assert cardkge.load_run(tmp_path / "final").settings.model == cardkge.load_run(tmp_path / "run").settings.model
