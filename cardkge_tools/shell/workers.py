"""Work side by side: trials, in processes of this machine or on a Dask cluster, and parts of a command on a cluster."""

import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import click

import cardkge
from cardkge import CardkgeError
from cardkge_tools.shell.files import IN_USE, missing_extra, sole_use
from cardkge_tools.shell.terminal import held_signals, say

VIOLATIONS = "violations.json"  # beside the files of a run


def commands_of(task):
    """The commands that a trial still needs: to train or resume it, then to write its violations."""

    def there(name):
        return os.path.exists(os.path.join(task["folder"], name))

    commands = []
    if not there("metrics.json"):
        broken = there("config.json") and not there("model.npz")  # killed while it saved for the first time
        commands.append(task["resume"] if there("model.npz") else task["train"] + ["--force"] * broken)
    if task["violations"] and not there(VIOLATIONS):
        commands.append(task["violations"])
    return commands


def perform(task, threads, processes=None):
    """Runs the commands that a trial still needs, each in its process. Returns the line of an error, or None.

    Waits for a process of this machine that works on the trial already: of another command, or of a worker that died.
    processes: Processes that another thread may stop; None on a worker."""
    processes = processes or Processes()
    while commands := commands_of(task):
        with sole_use(task["folder"]) as free:
            pass
        if not free:
            if processes.stopped:
                return "stopped"
            time.sleep(0.2)
            continue
        _, error = processes.run(task, commands[0], threads)
        # else another process has begun the trial since `sole_use` looked
        if error and IN_USE not in error and commands_of(task) == commands:
            return error
    return None


def this_program():
    """The part of a task that says where a worker finds the program, and where paths begin."""
    return {
        "program": [sys.executable, os.path.join(os.path.dirname(os.path.abspath(cardkge.__file__)), "cli.py")],
        "directory": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("CARDKGE_")},
    }


def error_line(code, errors):
    """How a process failed: the last line on stderr that is not a warning, else its exit code."""
    lines = [line for line in errors.split("\n") if line.strip() and not line.startswith("warning: ")]
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return lines[-1] if lines else ended


def output_of(task, threads):
    """(what the command of a task writes to stdout, bytes; None), or (None, the line of an error)."""
    return Processes().run(task, task["command"], threads)


class Processes:
    """Processes that can be stopped together."""

    def __init__(self):
        self.running, self.stopped, self.lock = set(), False, threading.Lock()

    def run(self, task, arguments, threads):
        """Runs the program of a task with these arguments to its end. Returns (what it writes to stdout, bytes; None),
        or (None, the line of an error). Several threads may call it."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.lock:
            if self.stopped:
                return None, "stopped"
            command = [*task["program"], *arguments, "--threads", str(threads)]
            try:
                environment = {**os.environ, **task["environment"]}
                process = subprocess.Popen(command, cwd=task["directory"], env=environment, **pipes)
            except OSError as error:
                return None, f"a process cannot be started: {error.filename or command[0]}: {error.strerror}"
            self.running.add(process)
        output, errors = process.communicate()
        with self.lock:
            self.running.discard(process)
        code = process.returncode
        return (None, error_line(code, errors.decode("utf-8", "replace"))) if code else (output, None)

    def stop(self):
        """Ends all of them, and lets no other start."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


def carry_out(tasks, jobs, threads, cluster=None):
    """Performs the tasks side by side, here or on a Dask cluster, and reports each. Returns errors: folder -> line."""
    began, failed, done = time.monotonic(), {}, 0

    def report(task, error):
        nonlocal done
        done += 1
        name, outcome = os.path.basename(task["folder"]), "done"
        if error:
            failed[name] = error.removeprefix("error: ")
            outcome = f"failed: {failed[name]}"
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        say(f"[{done}/{len(tasks)}] {minutes}:{seconds:02d}  {name}: {outcome}", err=True)

    if cluster:
        goes_on = "the same command goes on from here, once what runs on the workers has ended"
        carry_out_on_cluster(tasks, functools.partial(perform, threads=threads), cluster, report, goes_on)
        return failed
    processes = Processes()
    with held_signals() as caught, ThreadPoolExecutor(jobs) as pool:
        try:
            pending = {pool.submit(perform, task, threads, processes): task for task in tasks}
            while pending and not caught:
                for each in wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).done:
                    task, error = pending.pop(each), each.result()
                    if not (error and caught):  # else it was stopped
                        report(task, error)
        finally:
            processes.stop()
    if caught:
        click.echo("stopped; the same command goes on from here", err=True)
        sys.exit(128 + caught[0])
    return failed


def connected(client, address):
    """A Dask client of the scheduler at the address."""
    if address.startswith(("http://", "https://")) or address.endswith(".json"):
        what = "the address of its web page" if address.startswith("http") else "a scheduler file"
        raise CardkgeError(f"--cluster {address}: {what} is not supported; give the scheduler's own, tcp://HOST:PORT")
    try:
        return client(address, timeout=10)
    except TypeError as error:  # a protocol lacks what it needs: certificates, for tls://
        needs = "certificates, which Dask's configuration names (distributed.comm.tls)"
        why = f"needs {needs}" if address.startswith(("tls://", "wss://")) else f"cannot be used here ({error})"
        kind = address.partition(":")[0]
        raise CardkgeError(f"--cluster {address}: {kind} {why}; give tcp://HOST:PORT without them") from error
    except (OSError, ValueError) as error:
        raise CardkgeError(f"{address}: no Dask scheduler answers there; start one with `dask scheduler`") from error


def interrupted_by_signals(caught, ended):
    """Lists SIGINT and SIGTERM in `caught` and makes them raise KeyboardInterrupt, until the event `ended` is set.
    Returns the handlers that they had."""

    def stop(number, frame):
        caught.append(number)
        raise KeyboardInterrupt

    def insist():
        """Raises the signal again: an exception inside a finaliser or a callback is lost."""
        while not ended.wait(10):
            if caught:
                signal.pthread_kill(threading.main_thread().ident, caught[0])

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    threading.Thread(target=insist, daemon=True).start()
    return before


def carry_out_on_cluster(tasks, work, address, report, after):
    """Calls report(task, work(task)) for each task, in any order. The workers of a Dask scheduler work, by joblib; a
    task whose worker dies goes to another. after: how the last line ends after a signal, or where the cluster fails."""
    try:
        import cloudpickle
        import joblib
        from distributed import Client, TimeoutError
    except ImportError as error:
        raise missing_extra("--cluster", error, "cluster") from error

    def one(number, task):
        return number, work(task)

    for room in ("workers", "files"):  # sent whole: the workers need not have them
        cloudpickle.register_pickle_by_value(sys.modules[f"cardkge_tools.shell.{room}"])

    client = connected(Client, address)
    caught, ended = [], threading.Event()

    def watch(alone=False):
        with contextlib.suppress(Exception):  # the main thread meets the same error
            while not ended.wait(5):
                was_alone, alone = alone, not client.ncores()
                if alone and not was_alone:
                    say(f"{address}: no worker is left; waiting for one: `dask worker {address}`", err=True)

    logging.disable()  # errors are raised as well
    before = interrupted_by_signals(caught, ended)
    try:
        with client, joblib.parallel_config("dask"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib warns where `report` raises
            try:
                client.wait_for_workers(1, timeout=10)
            except TimeoutError as error:
                remedy = f"start some with `dask worker {address}`"
                raise CardkgeError(f"{address}: the scheduler has no workers; {remedy}") from error
            threading.Thread(target=watch, daemon=True).start()
            backend, _ = joblib.parallel.get_active_backend()
            # else joblib counts the workers' threads: with one it works in this process, and it hands out no more at
            # once than it has counted
            backend.effective_n_jobs = lambda n_jobs: 1 + len(tasks)
            parallel = joblib.Parallel(n_jobs=-1, batch_size=1, return_as="generator_unordered")
            for number, result in parallel(joblib.delayed(one)(*each) for each in enumerate(tasks)):
                report(tasks[number], result)
    except KeyboardInterrupt:
        ended.set()
        click.echo(f"stopped; {after}", err=True)
        sys.exit(128 + caught[0])
    except CardkgeError:
        raise
    except Exception as error:  # Dask and joblib raise many classes
        raise CardkgeError(f"{address}: the cluster failed ({type(error).__name__}: {error}); {after}") from error
    finally:
        ended.set()
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)
