"""New facts: calibrate, complete and evaluate sets, as commands do them; runs in, tables and files out."""

import os

import click
import numpy as np

from cardkge import CardkgeError, is_bounded
from cardkge_tools import SPLITS
from cardkge_tools.counts import Answers, Decoder, calibrate, complete, evaluate_sets, loops_to_leave_out, scope_pairs
from cardkge_tools.engine.ranking import check_finite
from cardkge_tools.figures import import_pyplot, plot_facts
from cardkge_tools.files import is_stdout, replace_file, write_json
from cardkge_tools.opening import found, open_to_measure
from cardkge_tools.rdf import read_prefixes
from cardkge_tools.runs import save_calibration
from cardkge_tools.terminal import counter, say, table, warn


def calibrate_run(run, dataset, folder, threads, share=None):
    """Calibrate a run on the valid split of its data, and keep that in its folder."""
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
    save_calibration(run, folder)
    found = run.calibration
    given = "as given" if share else f"{found.valid:,} / ({found.valid:,} + {found.missing:,}): test is what is missing"
    say(f"calibrated on valid, which is taken for {found.share:.3g} of the facts that train lacks ({given})")


def calibrated_run(run, folder):
    """The calibration of a run; CardkgeError where it has none."""
    if run.calibration is None:
        raise CardkgeError(f"{folder}: not calibrated yet; first: cardkge calibrate {folder}")
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
    """The bounds that condition the answers of a run, None where it has none."""
    return run.limits if run.constraints is not None or is_bounded(run.bounds).any() else None


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
        show_facts(measures, run_bounds(run) is not None)
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


def complete_run(run, dataset, folder, relation, known, least, precision, out, threads):
    """Write the new facts of all (h, r) in scope, best first."""
    write = writer_of(out, dataset, run.settings.data)
    chosen = None if relation is None else [found(run.relations, relation, "relation")]
    heads, relations = scope_pairs(dataset.train, len(run.entities), len(run.relations), chosen, run.types)
    decoder = fact_decoder(run, dataset, folder, heads, relations, known)
    with counter("completed: (h, r)") as progress:
        triples, p, contradicted = complete(decoder, heads, relations, least, precision, threads, progress)
    if contradicted:
        warn(f"{contradicted:,} (h, r) have other numbers of known tails than their bounds allow; they get no new ones")
    names = [run.entities, run.relations, run.entities]
    lines = write(
        ([name[i] for name, i in zip(names, triple, strict=True)], x) for triple, x in zip(triples.tolist(), p)
    )
    if out is None:
        for line in lines:
            click.echo(line, nl=False)
        return
    replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines))
    expected = f", of which {p.sum():,.0f} are expected to be true" if len(p) else ""
    say(f"{out}: {len(p):,} new facts of {len(heads):,} (h, r){expected}")


def writer_of(out, dataset, data):
    """A generator of lines of (names, probability): TSV, or N-Triples where the file's name ends in .nt."""

    def tsv(facts):
        for names, p in facts:
            yield "\t".join([*names, f"{p:.6g}"]) + "\n"

    if out is None or not os.fspath(out).endswith(".nt"):
        return tsv
    prefixes = read_prefixes(dataset.folder / "prefixes.tsv")

    def n_triples(facts):
        for names, _ in facts:
            yield " ".join(map(prefixes.term, names)) + " .\n"

    return n_triples
