"""Timing: tasks in turn, in rounds."""

import time

MODELS = ("distmult", "complex", "ermlp")


def alternate(rounds, tasks):
    """Runs each of the tasks {name: function} once to warm up, then all in turn, `rounds` times: {name: [its figures]}.

    A task takes no argument and returns its seconds per unit of work.
    """
    found = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            figure = task()
            if number:
                found[name].append(figure)
    return found


def timed(function, units):
    """A task: seconds per unit of a call that does `units` of them."""

    def task():
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) / units

    return task
