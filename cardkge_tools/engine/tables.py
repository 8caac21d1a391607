"""A model as the kernels see it: which scoring function, and the arrays that it scores."""

import numpy as np

import kernels
from cardkge import ERMLP, ComplEx, DistMult

KINDS = {DistMult: kernels.DISTMULT, ComplEx: kernels.COMPLEX, ERMLP: kernels.ERMLP}
OWN = None  # the kind of a class that the kernels do not know: it is scored by its own methods


def kind_of(model):
    """The kernels' number of the model's scoring function; OWN for another class, a subclass of the three included."""
    return KINDS.get(type(model), OWN)


def output_of(model):
    """ER-MLP's w (k',); for the others an empty array."""
    return model.params.get("output", np.empty(0, model.dtype))
