"""A model as the kernels see it: which scoring function, and the arrays that it scores."""

import numpy as np

import kernels

KINDS = {"distmult": kernels.DISTMULT, "complex": kernels.COMPLEX, "ermlp": kernels.ERMLP}


def kind_of(model):
    """The kernels' number of the model's scoring function."""
    return KINDS[model.name]


def output_of(model):
    """ER-MLP's w (k',); for the others an empty array."""
    return model.params.get("output", np.empty(0, model.dtype))
