"""Path set-up (``import cardkge`` works from any folder) and the fixtures that tests share."""

import functools
import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

# as the command line does, before NumPy is imported: on a busy machine BLAS threads wait for each other
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import hypothesis
import numpy as np
import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cardkge  # noqa: E402
import cli  # noqa: E402
from cardkge_tools.engine.training import batches_of  # noqa: E402

# before Click 8.2 a result has stderr apart only where that is asked for, and then `output` is without it
if "mix_stderr" in inspect.signature(CliRunner.__init__).parameters:
    CliRunner.__init__ = functools.partialmethod(CliRunner.__init__, mix_stderr=False)
    Result.output = property(lambda result: result.stdout + result.stderr)

# the same examples in every run: a failure is somebody's change, not chance
hypothesis.settings.register_profile("cardkge", derandomize=True, deadline=None)
hypothesis.settings.load_profile("cardkge")

MODEL_NAMES = ("distmult", "complex", "ermlp")


@pytest.fixture(params=MODEL_NAMES)
def model_name(request):
    """Each of the three models in turn."""
    return request.param


@pytest.fixture(autouse=True)
def forget_classes():
    """What a test has loaded is no model of the next."""
    before = dict(cardkge.MODELS)
    yield
    cardkge.MODELS.clear()
    cardkge.MODELS.update(before)


def draws_of_train(model, triples, settings, bounds=None):
    """What `train` draws, as `algorithm_1` takes its draws."""
    source = batches_of(cardkge.Trainer(model, {}, settings, bounds, triples, None), triples)

    def draws(epoch):
        order = source.order(epoch)
        for step in range(source.steps):
            ends, relations, samples = source.draw(order, epoch, step)
            relations = np.repeat(relations[:, None], ends.shape[1], axis=1)
            yield ends[..., 0], relations, ends[..., 1], [one for sample in samples for one in sample.by_relation()]

    return draws


@pytest.fixture
def make_model():
    """A function that makes a model with random parameters large enough to matter."""

    def make(name, n_entities=7, n_relations=3, dim=4, hidden=5, seed=0, dtype="float64", scale=0.8):
        extra = {"hidden": hidden} if name == "ermlp" else {}
        model = cardkge.MODELS[name](n_entities, n_relations, dim=dim, seed=seed, dtype=dtype, **extra)
        rng = np.random.default_rng(1000 + seed)
        for key in sorted(model.params):
            array = model.params[key]
            array[...] = rng.normal(0.0, scale, array.shape)
        return model

    return make


@pytest.fixture
def make_dataset():
    """A function that wraps arrays of triples as a data set, without any file."""

    def make(train, valid=(), test=(), n_entities=None, n_relations=None):
        splits = [np.array(s, dtype=np.int32).reshape(-1, 3) for s in (train, valid, test)]
        known = np.concatenate(splits)
        n_entities = n_entities or int(known[:, [0, 2]].max()) + 1
        n_relations = n_relations or int(known[:, 1].max()) + 1
        return cardkge.Dataset(
            "toy", Path("toy"), [f"e{i}" for i in range(n_entities)], [f"r{i}" for i in range(n_relations)], *splits, ()
        )

    return make


@pytest.fixture
def toy(make_dataset):
    """12 entities in a ring with 3 relations: next, next but one, and the ring reversed."""
    n = 12
    triples = [(i, 0, (i + 1) % n) for i in range(n)]
    triples += [(i, 1, (i + 2) % n) for i in range(n)] + [(i, 1, (i + 3) % n) for i in range(0, n, 3)]
    triples += [((i + 1) % n, 2, i) for i in range(n)]
    triples = np.random.default_rng(5).permutation(np.array(triples))
    return make_dataset(triples[:30], triples[30:35], triples[35:], n, 3)


def thorough(*values):
    """A case of a parametrized test that belongs to the thorough ones."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def invoke(*arguments):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments])


def ok(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def one_error(result, code=1):
    """The line of an error: one, no traceback, the right exit code."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    lines = [x for x in result.stderr.splitlines() if not x.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


def usage_error(result):
    assert result.exit_code == 2
    assert "Usage:" in result.stderr and "Traceback" not in result.stderr
    return result.stderr


def start(*arguments, **options):
    """A real process."""
    command = [sys.executable, ROOT / "cli.py", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([str(a) for a in command], **options)


def finish(process):
    output, errors = process.communicate(timeout=300)
    assert "Traceback" not in (errors or "")
    return process.returncode, output, errors


def snapshot(folder):
    """The bytes of all files, by their paths inside the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wait_for(condition, seconds=60, process=None):
    """What the condition gives once it is true. Fails after so many seconds, or if the process ends before."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for {seconds} s"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def children(pid):
    """The processes (pid -> arguments) that a process has started and that are not ended, by /proc."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == pid and state != "Z":
                    found[int(folder.name)] = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1]
            except OSError:  # it has ended meanwhile
                pass
    return found


def write_ring(folder, n=60, seed=0):
    """A data set of n entities in a ring, relations r0: next, r1: next but one, r2: the one before; 1 in 10 triples is
    in valid, 1 in 10 in test."""
    folder.mkdir(parents=True, exist_ok=True)
    triples = [(i, r, (i + step) % n) for i in range(n) for r, step in enumerate((1, 2, -1))]
    triples = np.random.default_rng(seed).permutation(triples)
    first, second = len(triples) // 10, len(triples) // 5
    for split, rows in (("valid", triples[:first]), ("test", triples[first:second]), ("train", triples[second:])):
        lines = "".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in rows)
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8")
    return folder


def plain_calibration(a, b, c, share):
    """A Calibration with log odds a score + b log softmax + c, (R,) each, without a ceiling; known where it is used is
    the part `share` of what train lacks."""
    a, b, c = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, float)) for x in (a, b, c)))
    zero = np.zeros(len(a))
    parameters = np.column_stack((np.log(a + b), c, zero, zero, a, zero, zero, zero + 50))
    return cardkge.Calibration(parameters, np.zeros(3), np.ones(3), *np.full((2, len(a)), share))
