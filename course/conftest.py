"""What the exercises' tests share: `hint`, `differences`, and short words for what is not written yet."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `pytest course/exercise_1.py` without `python -m`
    sys.path.insert(0, str(ROOT))


@pytest.fixture
def hint():
    """hint(holds, text): the test fails with the text, and nothing else is shown, unless `holds`."""

    def check(holds, text):
        __tracebackhide__ = True
        if not holds:
            pytest.fail(text, pytrace=False)

    return check


@pytest.fixture
def differences():
    """differences(function, array): d function() / d array by central differences. The array is moved and restored."""

    def slopes(function, array, step=1e-5):
        found = np.empty_like(array)
        for place in np.ndindex(array.shape):
            kept, values = array[place], []
            for move in (step, -step):
                array[place] = kept + move
                values.append(function())
            array[place] = kept
            found[place] = (values[0] - values[1]) / (2 * step)
        return found

    return slopes


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """A stub fails with its own words; a traceback would only show where the stub is."""
    try:
        return (yield)
    except NotImplementedError as error:
        raise pytest.fail.Exception(f"not written yet: {error}", pytrace=False) from None
