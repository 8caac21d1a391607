"""Ranges of work on several threads, with the same bits for any number of them."""

import collections
import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor

from cardkge import CardkgeError


def count_cores():
    """The processor cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, math.ceil(min(cpu_quota(), cores))))


def cpu_quota(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """How many cores' time the control groups of this process (a container's, say) may use; infinity for no limit.

    root: where the groups are mounted; own: the file that says which are this process's (cgroups(7), versions 1, 2).
    """
    try:
        with open(own, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return math.inf
    quota = math.inf
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = os.path.join(root, controllers) if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(
            len(parts) + 1
        ):  # a group has no more than those above it; inside a container it is the root
            quota = min(quota, _quota_of(os.path.join(base, *parts[:depth])))
    return quota


def _quota_of(folder):
    """The quota of one control group, of either version."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = []
            for name in names:
                with open(os.path.join(folder, name), encoding="ascii") as file:
                    words += file.read().split()
            limit, period = float(words[0]), float(words[1])  # "max" is no number, -1 no limit
        except (OSError, ValueError, IndexError):
            continue
        if limit > 0 and period > 0:
            return limit / period
    return math.inf


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
