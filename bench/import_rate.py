"""How fast, and in how much memory, `import` reads N-Triples: `python bench/import_rate.py FILE.nt` (make_ntriples.py).

Beside it pyoxigraph's own rate: the statements of its parser, taken one after the other and thrown away. Each in a
process of its own, in turn; the best of the rounds, by wall-clock time. Where other programs want the processors too,
the CPU time says how long it would take alone. Memory is the high-water mark of the process, less that of one that
imports ten triples.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]


def parse(path, _):
    """Counts the statements of a file."""
    import pyoxigraph

    return {"statements": sum(1 for _ in pyoxigraph.parse(path=path, format=pyoxigraph.RdfFormat.N_TRIPLES))}


def take_in(path, folder):
    """Imports a file."""
    from cardkge_tools.graph.importing import import_graph

    result = import_graph([path], folder)
    return {"triples": result.triples, "entities": result.entities}


TASKS = {"parse": parse, "take_in": take_in}


def measured(task, path):
    """What a task gives in a process of its own, with its seconds, CPU seconds and MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, str(path), "--task", task, "--folder", folder]
        return json.loads(subprocess.check_output(command))


def carry_out(task, path, folder):
    """Prints what `measured` reads."""
    start, own = time.perf_counter(), time.process_time()
    found = TASKS[task](str(path), folder)
    found |= {"seconds": time.perf_counter() - start, "cpu": time.process_time() - own}
    print(json.dumps(found | {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def main():
    """Print the rates, their ratio, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        carry_out(options.task, options.path, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.nt"
        small.write_text("".join(f"<http://a/{i}> <http://a/p> <http://a/{i + 1}> .\n" for i in range(10)))
        ground = measured("take_in", small)["MiB"]
    found = {task: [] for task in TASKS}
    for _ in range(options.rounds):
        for task, each in found.items():
            each.append(measured(task, options.path))
    own, ours = (min(each, key=lambda one: one["seconds"]) for each in found.values())
    statements = own["statements"]
    for name, one in (("pyoxigraph's parser", own), ("import", ours)):
        print(f"{name}: {statements / one['seconds']:,.0f} statements/s; CPU {one['cpu']:.1f} s")
    ratios = [own[what] / ours[what] for what in ("seconds", "cpu")]
    print(f"ratio {ratios[0]:.2f}, by CPU time {ratios[1]:.2f}")
    print(f"{ours['triples']:,} triples, {ours['entities']:,} entities")
    print(f"memory {ours['MiB'] - ground:,.0f} MiB, of which ids {12 * statements / 2**20:,.0f}")


if __name__ == "__main__":
    main()
