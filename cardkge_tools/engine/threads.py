"""Ranges of work on several threads, with the same bits for any number of them."""

import collections
import functools
import os
from concurrent.futures import ThreadPoolExecutor

from cardkge import CardkgeError


def count_cores():
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """Runs a function over ranges of work on `count` threads (None: as many as this process may use).

    The ranges are the same for any number of threads, and no two of them write the same element. Matrix products go
    to the BLAS library below NumPy, which rounds differently on one thread and on several of its own: for the same bits
    everywhere keep it to one (OPENBLAS_NUM_THREADS=1 before NumPy is imported; cli.py does so).
    """

    def __init__(self, count=None):
        if count is None:
            count = count_cores()
        if count < 1:
            raise CardkgeError(f"threads must be at least 1, found {count}")
        self.count = count
        self.pool = ThreadPoolExecutor(count - 1) if count > 1 else None

    def start(self, function, *arguments):
        """Runs function(*arguments) beside what follows, on another thread if there is one. Returns a function without
        arguments that waits for its result."""
        if self.pool:
            return self.pool.submit(function, *arguments).result
        return lambda: function(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.pool:
            self.pool.shutdown()

    def run(self, function, total, *arguments, size, beside=()):
        """function(first, last, *arguments) over ranges of range(total) of `size` each, the last perhaps shorter;
        in their midst the functions without arguments in `beside`, which so neither begin while another thread still
        holds Python's lock for something `start`ed, nor end when there is nothing else left to do."""
        tasks = [functools.partial(function, i, min(i + size, total), *arguments) for i in range(0, total, size)]
        tasks = collections.deque(tasks[: len(tasks) // 2] + list(beside) + tasks[len(tasks) // 2 :])

        def work():
            while True:
                try:
                    task = tasks.popleft()
                except IndexError:
                    return
                try:
                    task()
                except BaseException:  # the others end with the task that they are at
                    tasks.clear()
                    raise

        others = [self.pool.submit(work) for _ in range(min(self.count, len(tasks)) - 1)] if self.pool else []
        try:
            work()
        finally:
            for other in others:
                other.result()
