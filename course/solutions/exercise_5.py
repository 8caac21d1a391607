"""The answer to course/exercise_5.py, which has the question and the tests."""

# --- your part


def draw(q, omega, rng):
    """omega objects, each from q, with repetition: (objects (omega,) ids, weights (omega,)). q (N,) adds up to 1."""
    objects = rng.choice(len(q), size=omega, p=q)
    return objects, 1 / (omega * q[objects])


def estimate(p, objects, weights):
    """X_S = sum_j weight_j p(t_j), a number; p (N,) the probabilities of all entities."""
    return float(weights @ p[objects])


def variance(p, q, omega):
    """The variance of X_S over all samples of omega objects from q: a sum over all N entities, nothing drawn."""
    return float(((p**2 / q).sum() - p.sum() ** 2) / omega)


# --- the tests
