"""New facts: calibrate, complete and evaluate sets, as commands do them; runs in, tables and files out."""

import dataclasses
import functools
import io
import os
from pathlib import Path

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.answers.calibration import calibrate, learn_counts
from cardkge_tools.answers.decoding import Decoder, block_of, complete, joined_parts, probable
from cardkge_tools.answers.figures import import_pyplot, plot_facts
from cardkge_tools.answers.measures import evaluate_sets
from cardkge_tools.answers.opening import open_run, open_to_measure
from cardkge_tools.answers.runs import save_calibration
from cardkge_tools.answers.scope import Answers, loops_to_leave_out, scope_pairs
from cardkge_tools.engine.own import LOADED
from cardkge_tools.engine.ranking import check_finite
from cardkge_tools.graph.rdf import format_of, read_prefixes
from cardkge_tools.graph.spelling import found
from cardkge_tools.shell.files import is_stdout, read_json, replace_file, write_json
from cardkge_tools.shell.terminal import counter, say, table, this_command, warn
from cardkge_tools.shell.workers import carry_out_on_cluster, output_of, this_program


def calibrate_command(folder, data, share, threads, json_file):
    """`calibrate`: what came of it as a table, or as JSON, what calibration.json says."""
    run, dataset = open_run(folder, data, calibrated=False)
    calibrate_run(run, dataset, folder, threads, share, quiet=is_stdout(json_file))
    if json_file:
        write_json(json_file, read_json(Path(folder) / "calibration.json"))
    if not is_stdout(json_file):
        show_calibration(run, dataset)


def calibrate_run(run, dataset, folder, threads, share=None, quiet=False):
    """Calibrate a run on the valid split of its data, and keep that in its folder; quiet: what is said goes to
    stderr."""
    if run.settings.final:
        raise CardkgeError(f"{folder}: it was trained on valid too, and has the calibration of the run it was made of")
    check_finite(run.best_model().params)
    with counter("calibrating: (h, r)") as progress:
        run.calibration = calibrate(
            run.best_model(),
            dataset.train,
            dataset.valid,
            len(dataset.test),
            share,
            run.settings.seed,
            threads,
            progress,
            types=run.types,
        )
    if run.settings.bounds == "mined":
        of = run.best_model(), run.calibration, dataset.train, dataset.valid, run.settings.seed, threads, run.types
        run.calibration = dataclasses.replace(run.calibration, prior=learn_counts(*of))
    save_calibration(run, folder)
    found = run.calibration
    given = "as given" if share else f"{found.valid:,} / ({found.valid:,} + {found.missing:,}): test is what is missing"
    say(f"calibrated on valid, which is taken for {found.share:.3g} of the facts that train lacks ({given})", err=quiet)


def calibrated_run(run, folder):
    """The calibration of a run; CardkgeError where it has none."""
    if run.calibration is None:
        raise CardkgeError(f"{folder}: not calibrated yet; first: {this_command()} calibrate {folder}")
    return run.calibration


def show_calibration(run, dataset):
    """A line for each relation: the facts of valid, and what a score means there."""
    counts = np.bincount(dataset.valid[:, 1], minlength=len(run.relations))
    rows = []
    for name, valid, coefficients in zip(run.relations, counts, run.calibration.coefficients, strict=True):
        cells = [f"{a:.2f} {b:.2f} {c:.2f}" for a, b, c in coefficients]
        rows.append([name, f"{valid:,}", *cells])
    headers = ["relation", "valid", "a b c, no known tail", "one", "more"]
    table(rows, headers, "lr")
    click.echo("log odds of a fact = a score + b log_softmax + c")


def run_bounds(run):
    """The Bounds that condition the answers of a run; its CountPrior, if it has been calibrated with one (a run with
    mined bounds has): the most that train happens to hold is no limit."""
    if run.calibration is not None and run.calibration.prior is not None:
        return run.calibration.prior
    return run.bounds


# ------------------------------------------------------------------------------------------------------------------
# evaluate --sets
# ------------------------------------------------------------------------------------------------------------------

SHARES = "ap", "best_f1", "f1", "precision", "recall"  # shown in percent


def evaluate_facts(run, dataset, folder, least, precision, loops, threads):
    """(measures, details) of `evaluate_sets`."""
    with counter("looked at: (h, r)") as progress:
        return evaluate_sets(
            run.best_model(), calibrated_run(run, folder), run_bounds(run), dataset, least, precision, loops, threads,
            progress, run.types,
        )  # fmt: skip


def evaluate_command(folder, data, least, precision, loops, threads, json_file, plot):
    """`evaluate --sets`: a table, and JSON and figures where they are asked for."""
    pyplot = import_pyplot(plot) if plot else None
    run, dataset = open_to_measure(folder, data)
    measures, details = evaluate_facts(run, dataset, folder, least, precision, loops, threads)
    if json_file:
        write_json(json_file, measures)
    if not is_stdout(json_file):
        show_facts(measures, run.bounds.any())
    if plot:
        plot_facts(pyplot, measures, details, plot)


def show_facts(measures, conditioned):
    """The measures of `evaluate_sets` as a table of two columns, with what each is."""
    percent = {name: "-" if measures[name] is None else f"{100 * measures[name]:.2f} %" for name in SHARES}
    threshold = measures["threshold"]
    rows = [
        ["average precision", percent["ap"], f"of all candidates of {measures['pairs']:,} (h, r)"],
        ["best F1", percent["best_f1"], "at the threshold that suits test best"],
        ["F1", percent["f1"], f"of {measures['accepted']:,} accepted, against {measures['facts']:,} facts of test"],
        ["precision", percent["precision"], "test alone counts as true: a floor"],
        ["mean probability", _percent(measures["mean_probability"]), "of the accepted: the precision that is promised"],
        ["recall", percent["recall"], "" if threshold is None else f"accepted down to p = {threshold:.3f}"],
        ["calibration error", f"{100 * measures['ece']:.2f} %", "15 bins of the candidates with p >= 0.1"],
        ["Brier score", f"{measures['brier']:.4f}", "sum over candidates, per new fact of test"],
        ["log loss", f"{measures['log_loss']:.4f}", "the same"],
        ["count error", f"{measures['count_mae']:.4f}", f"known facts alone: {measures['known_count_mae']:.4f}"],
        [
            "out of bounds",
            f"{100 * measures['out_of_bounds']:.2f} %",
            "expected counts" if conditioned else "no bounds",
        ],
        ["contradicted", f"{measures['contradicted']:,}", "(h, r) with more known tails than their bound allows"],
    ]
    table(rows, ["", "", ""], "lrl", "plain")


def _percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"


# ------------------------------------------------------------------------------------------------------------------
# complete
# ------------------------------------------------------------------------------------------------------------------

PARTS, PART_SCORES = 16, 2**33  # on a cluster: so many parts at least, of so many scores at most (half a minute)


def known_triples(dataset, known):
    """The triples of train, of train and valid ("valid"), or of all splits ("all")."""
    count = {"train": 1, "valid": 2, "all": 3}[known]
    return np.concatenate([getattr(dataset, split) for split in SPLITS[:count]])


def fact_decoder(run, dataset, folder, heads, relations, known):
    """A Decoder of a run for these pairs; loops are no candidates where train has none."""
    n, r = len(run.entities), len(run.relations)
    answers = Answers(known_triples(dataset, known), n, r)
    excluded = answers.joined(Answers(loops_to_leave_out(dataset.train, heads, relations, r), n, r))
    return Decoder(run.best_model(), calibrated_run(run, folder), run_bounds(run), answers, excluded)


def pairs_to_complete(run, dataset, relation):
    """The (h, r) in scope, of one relation by name or of all."""
    chosen = None if relation is None else [found(run.relations, relation, "relation", run.prefixes)]
    return scope_pairs(dataset.train, len(run.entities), len(run.relations), chosen, run.types)


def complete_part(run, dataset, folder, relation, known, least, part, out, threads):
    """Write what `probable` finds of a range of the (h, r) in scope, as .npz: what a worker of a cluster does."""
    heads, relations = (each[slice(*part)] for each in pairs_to_complete(run, dataset, relation))
    decoder = fact_decoder(run, dataset, folder, heads, relations, known)
    file = io.BytesIO()
    np.savez(file, *probable(decoder, heads, relations, least, threads))
    replace_file(out, lambda stream: stream.write(file.getvalue()))


def probable_on_cluster(command, n_pairs, n_entities, address, threads, progress, least):
    """`probable`, done by the workers of a Dask scheduler: parts of whole blocks, so that the bits are the same.

    command: arguments of the `complete` that a worker runs for a part, but for its range and for `least`.
    """
    block = block_of(n_entities)
    size = max(1, min(n_pairs // PARTS, PART_SCORES // n_entities) // block) * block
    tasks, parts, done = [], {}, 0
    for first in range(0, n_pairs, size):
        part = [str(first), str(min(first + size, n_pairs))]
        tasks.append(this_program() | {"command": [*command, "--min-probability", repr(least), "--part", *part]})

    def report(task, result):
        nonlocal done
        content, error = result
        if error:
            raise CardkgeError(f"a worker: {error.removeprefix('error: ')}")
        first, last = map(int, task["command"][-2:])
        with np.load(io.BytesIO(content)) as arrays:
            *columns, contradicted = (arrays[name] for name in arrays.files)
        parts[first] = *columns, int(contradicted)
        done += last - first
        progress(done, n_pairs)

    nothing = "nothing has been written"
    carry_out_on_cluster(tasks, functools.partial(output_of, threads=threads), address, report, nothing)
    return joined_parts(parts)


def complete_run(run, dataset, folder, relation, known, least, precision, out, threads, cluster=None, data=None):
    """Write the new facts of all (h, r) in scope, best first. cluster: the address of a Dask scheduler, whose workers
    look for them; data: where these find the run's data now."""
    write = writer_of(out, dataset, run.settings.data)
    heads, relations = pairs_to_complete(run, dataset, relation)
    decoder = fact_decoder(run, dataset, folder, heads, relations, known)
    with counter("completed: (h, r)") as progress:
        look = None
        if cluster:
            command = ["complete", os.path.abspath(folder), "--known", known, "--out", "/dev/stdout"]
            command += ["--relation", relation] * (relation is not None) + ["--data", str(data)] * (data is not None)
            command += ["--model", LOADED[run.settings.model]] if run.settings.model in LOADED else []
            sizes = len(heads), len(run.entities)
            look = functools.partial(probable_on_cluster, command, *sizes, cluster, threads or 1, progress)
        triples, p, contradicted = complete(decoder, heads, relations, least, precision, threads, progress, look)
    if contradicted:
        warn(f"{contradicted:,} (h, r) have other numbers of known tails than their bounds allow; they get no new ones")
    names = [run.entities, run.relations, run.entities]
    lines = write(
        ([name[i] for name, i in zip(names, triple, strict=True)], x) for triple, x in zip(triples.tolist(), p)
    )
    if out is None:
        for line in lines:
            click.echo(line, nl=False)
        if not len(p):
            say(f"no new fact of {len(heads):,} (h, r) is accepted", err=True)
        return
    replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines))
    expected = f", of which {p.sum():,.0f} are expected to be true" if len(p) else ""
    say(f"{out}: {len(p):,} new facts of {len(heads):,} (h, r){expected}")


def writer_of(out, dataset, data):
    """A generator of lines of (names, probability): TSV, or N-Triples where the file's name ends in .nt, or in that of
    another format of RDF of which N-Triples are a part; CardkgeError for the others."""
    kind = None if out is None else format_of(out)
    if kind not in (None, "N_TRIPLES", "N_QUADS", "TURTLE", "TRIG"):
        raise CardkgeError(f"{out}: new facts are written as TSV or N-Triples; end the name in .tsv or .nt")

    def tsv(facts):
        for names, p in facts:
            yield "\t".join([*names, f"{p:.6g}"]) + "\n"

    if kind is None:
        return tsv
    prefixes = read_prefixes(dataset.folder / "prefixes.tsv")

    def n_triples(facts):
        for names, _ in facts:
            yield " ".join(map(prefixes.term, names)) + " .\n"

    return n_triples
