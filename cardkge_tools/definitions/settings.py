"""Settings: everything that determines the bits of a run, their defaults and their ranges."""

import math
import typing
from dataclasses import dataclass, replace

import numpy as np

from cardkge import (
    INCLUSIONS,
    LOSSES,
    MODELS,
    OPTIMIZERS,
    POOLS,
    PROJECTIONS,
    SAMPLINGS,
    SCHEDULES,
    CardkgeError,
    chosen,
)

PAPER = {  # defaults with the paper's losses
    "model": "distmult",
    "epochs": 200,
    "batches": 10,
    "learning_rate": 0.1,
    "schedule": "constant",
    "accumulator": 0.1,  # as in TensorFlow, which the paper used
    "n3": 0.0,
    "relation_weight": 0.0,
    "project": "unit",
    "reciprocal": False,
    "softmax_candidates": 0,
    "penalty_weight": 0.01,
    "validate_every": 0,
}
DIMS = {"distmult": 200, "complex": 150, "ermlp": 100}  # defaults of dim, which reach the paper's figures
OWN_DIM = 100  # the default for a user's own class
CHOICES = {  # settings that name one of these
    "model": MODELS,
    "loss": LOSSES | {"softmax": None},
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "project": PROJECTIONS,
    "sampling": SAMPLINGS,
    "inclusion": INCLUSIONS,
    "subject_pool": POOLS,
    "dtype": dict.fromkeys(("float32", "float64")),
}


@dataclass(frozen=True)
class Settings:
    """Everything that determines the bits of a run, under the names of the command line, whose help explains them.
    Defaults follow the paper's recipe, or measurements where it is silent (docs/REPRODUCTION.md). Frozen, and checked
    when made: CardkgeError for a setting out of its range; `dataclasses.replace` makes another.

    The loss decides what None means: with the paper's losses the value in PAPER; under softmax a value that follows
    from the sizes of the graph, and None until `resolved`."""

    model: str | None = None
    data: str = "families"
    columns: str = "hrt"
    dim: int | None = None  # None, with the paper's losses: DIMS[model]
    hidden: int = 100
    epochs: int | None = None
    batches: int | None = None
    batch_size: int | None = None  # in place of `batches`
    negatives: int = 2
    filter_negatives: bool = False
    loss: str = "logistic"
    margin: float = 0.5
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    decay: float = 0.0
    schedule: str | None = None
    accumulator: float | None = None  # where AdaGrad's accumulators start
    l2: float = 0.0
    n3: float | None = None
    relation_weight: float | None = None
    project: str | None = None
    reciprocal: bool | None = None
    softmax_candidates: int | None = None
    no_loops: bool = False
    bounds: str = "none"  # none, mined, or a file
    penalty_weight: float | None = None  # lambda
    extra_negatives: bool = False  # a control: the regulariser's sample as corruptions, whatever the bounds
    sampling: str = "uniform"
    inclusion: str = "frequency"
    subjects: int = 10  # mu
    objects: int = 100  # omega
    subject_pool: str = "relation"
    seed: int = 0
    dtype: str = "float32"
    validate_every: int | None = None
    patience: int = 0
    final: bool = False  # trained on train, valid and test together
    joined: int = 0  # of so many runs the mean, which is not trained

    def __post_init__(self):
        for name, value in ({"model": "complex"} if self.loss == "softmax" else PAPER).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # the class is frozen
        self._check()

    def resolved(self, n_entities, n_relations, n_triples):
        """A copy in which every None is replaced by the value that follows from the sizes of the graph."""
        if self.loss != "softmax":
            return self
        rule = softmax_defaults(self, n_entities, n_relations, n_triples)
        return replace(self, **{name: value for name, value in rule.items() if getattr(self, name) is None})

    def _check(self):
        """CardkgeError that names the first setting out of its range, its value and the values allowed."""
        if str(self.model).startswith(":") and self.model not in MODELS:
            name = self.model[1:]
            raise CardkgeError(f"the model is {name}, a user's own class: load it with --model PATH.py:{name}")
        for name, choices in CHOICES.items():
            if getattr(self, name) is not None or name not in ("schedule", "project"):  # None: not resolved yet
                chosen(name, getattr(self, name), choices)
        for name, kind in typing.get_type_hints(Settings).items():
            if not fits(getattr(self, name), kind):
                wanted = getattr(kind, "__name__", kind)
                raise CardkgeError(f"{name} must be {wanted}, found {getattr(self, name)!r}")
        least = dict.fromkeys(("dim", "hidden", "batches", "batch_size", "negatives", "subjects", "objects"), 1)
        least |= dict.fromkeys(("epochs", "margin", "decay", "accumulator", "l2", "n3", "penalty_weight"), 0)
        least |= dict.fromkeys(("relation_weight", "softmax_candidates", "learning_rate", "seed"), 0)
        least |= dict.fromkeys(("validate_every", "patience"), 0)
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < np.inf:
                raise CardkgeError(f"{name} must be a finite number, at least {low}; found {value}")
        if self.seed >= 2**32:
            raise CardkgeError(f"seed must be below 2^32, found {self.seed}")
        if self.decay and self.optimizer != "sgd":
            raise CardkgeError("decay is for sgd: AdaGrad lowers its steps itself; leave one of them out")
        if self.loss != "softmax":
            for name in ("reciprocal", "n3", "relation_weight", "softmax_candidates", "no_loops"):
                if getattr(self, name):
                    raise CardkgeError(f"{name} is for the softmax loss: leave it out, or give loss softmax")
        elif self.extra_negatives:
            raise CardkgeError("extra_negatives is for losses with negatives: leave it out, or give loss logistic")
        if self.patience and self.validate_every == 0:
            raise CardkgeError("patience counts validations: give validate_every too")


def fits(value, kind):
    """Whether a JSON value has the type of a field; a bool is not an int, an int is a float."""
    kinds = typing.get_args(kind) or (kind,)
    return type(value) in kinds or (float in kinds and type(value) is int)


def option_name(field_name):
    """The command-line name of a field of Settings, as in config.json: penalty_weight is lambda."""
    return "lambda" if field_name == "penalty_weight" else field_name.replace("_", "-")


def softmax_defaults(settings, n_entities, n_relations, n_triples):
    """The settings under softmax that follow from the sizes of a graph, name -> value (measured in docs/SOFTMAX.md): N3
    from 0.01 to 0.1, larger where an entity has few triples; about 1,500 steps over all entities (DistMult and ComplEx,
    others 2,500), or, above 8,192 entities, 5,000 over a sixteenth of them (2,048 to 16,384); 10 to 60 epochs. If
    such a graph has 100 relations or more, N3 is larger, and DistMult and ComplEx learn to predict the relation too."""
    queries, mlp, large = 2 * max(n_triples, 1), settings.model == "ermlp", n_entities > 8192
    batch_size = int(np.clip(round(2.5 * math.sqrt(queries)), 64, 4096))
    if settings.batch_size or settings.batches:
        batch_size = settings.batch_size or -(-queries // settings.batches)
    linear, many = settings.model in ("distmult", "complex"), large and n_relations >= 100
    n3 = max(0.22 * n_entities / max(n_triples, 1), 5e-4 * math.sqrt(n_entities) if many else 0)
    dim = 100 if n_entities > 100_000 else 256 if n_entities > 20_000 else 512
    epochs, steps = settings.epochs, 5000 if large else 1500 if linear else 2500
    if epochs is None:
        epochs = int(np.clip(round(steps / math.ceil(queries / batch_size)), 10, 60))
    return {
        "dim": dim if linear else DIMS.get(settings.model, OWN_DIM),
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": 0.05 if mlp else 0.2,
        "schedule": "late",
        "accumulator": 0.0,
        "project": "none",
        "relation_weight": 1.0 if linear and many else 0.0,
        "n3": 0.0 if mlp else float(f"{np.clip(n3, 0.01, 0.1):.1g}"),
        "reciprocal": settings.model in DIMS,  # a user's own class need not have them
        "softmax_candidates": int(np.clip(n_entities // 16, 2**11, 2**14)) if large else 0,
        "penalty_weight": 0.0,
        "validate_every": max(1, -(-epochs // 5)),
    }
