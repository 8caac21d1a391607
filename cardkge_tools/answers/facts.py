"""New facts of runs: calibrated, completed, written; here or on a cluster."""

import dataclasses
import functools
import io
import os

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.answers.calibration import calibrate, learn_counts
from cardkge_tools.answers.decoding import (
    Decoder,
    KnownAndLoops,
    KnownTails,
    block_of,
    complete,
    joined_parts,
    probable,
    scope_pairs,
)
from cardkge_tools.answers.opening import open_run
from cardkge_tools.answers.runs import save_calibration
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.own import LOADED
from cardkge_tools.engine.ranking import check_finite
from cardkge_tools.graph.rdf import format_of, is_literal, made_term, read_prefixes
from cardkge_tools.graph.spelling import id_of
from cardkge_tools.shell.files import replace_file
from cardkge_tools.shell.terminal import counter, say, this_command, warn
from cardkge_tools.shell.workers import carry_out_on_cluster, output_of, this_program

FEW = 10  # facts of valid; fitted on fewer, p is said to be of little worth


def calibrate_run(run, dataset, folder, threads, share=None, quiet=False):
    """Calibrate a run on the valid split of its data, and keep that in its folder; quiet: what is said goes to
    stderr."""
    if run.settings.final:
        raise CardkgeError(f"{folder}: it was trained on valid too, and has the calibration of the run it was made of")
    check_finite(run.best_model().params)
    sizes = len(run.entities), len(run.relations)
    fresh = len(KnownTails(dataset.valid, *sizes).without(KnownTails(dataset.train, *sizes)).keys)
    if len(dataset.valid) and not fresh:
        raise CardkgeError(
            f"calibration: the facts of valid ({len(dataset.valid):,}) all stand in train too, so they say nothing of"
            " new ones; hold out others (`split`)"
        )
    with counter("calibrating: (h, r)") as progress:
        run.calibration = calibrate(
            run.best_model(), dataset.train, dataset.valid, len(dataset.test), share, run.settings.seed, threads,
            progress, types=run.types,
        )  # fmt: skip
    if run.settings.bounds == "mined":
        of = run.best_model(), run.calibration, dataset.train, dataset.valid, run.settings.seed, threads, run.types
        run.calibration = dataclasses.replace(run.calibration, prior=learn_counts(*of))
    save_calibration(run, folder)
    found = run.calibration
    given = "as given" if share else f"{found.valid:,} / ({found.valid:,} + {found.missing:,}): test is what is missing"
    say(f"calibrated on valid, which is taken for {found.share:.3g} of the facts that train lacks ({given})", err=quiet)
    if fresh < FEW:
        warn(
            f"calibrated on {fresh} new fact{'s' * (fresh > 1)} of valid: p puts answers in order, but may promise"
            " twice what is true, or four times; hold out some dozens of facts (`split --valid`) before you believe it"
        )


def calibrated_run(run, folder):
    """The calibration of a run; CardkgeError where it has none."""
    if run.calibration is None:
        raise CardkgeError(f"{folder}: not calibrated yet; first: {this_command()} calibrate {folder}")
    return run.calibration


def run_bounds(run):
    """The Bounds that condition the answers of a run; its CountPrior, if it has been calibrated with one (a run with
    mined bounds has): the most that train happens to hold is no limit."""
    if run.calibration is not None and run.calibration.prior is not None:
        return run.calibration.prior
    return run.bounds


# ------------------------------------------------------------------------------------------------------------------
# complete
# ------------------------------------------------------------------------------------------------------------------

PARTS, PART_SCORES = 16, 2**33  # on a cluster: so many parts at least, of so many scores at most (half a minute)


@dataclasses.dataclass(frozen=True)
class Completing:
    """What `complete` looks for: new facts of a relation (None: of all), beside what is known in train, valid ("valid":
    with train) or all splits, accepted as `decoding.complete` does."""

    relation: str | None = None
    known: str = "all"
    least: float = 0.5
    precision: float | None = None


def known_triples(dataset, known):
    """The triples of train, of train and valid ("valid"), or of all splits ("all")."""
    count = {"train": 1, "valid": 2, "all": 3}[known]
    return np.concatenate([getattr(dataset, split) for split in SPLITS[:count]])


def fact_decoder(run, dataset, folder, known):
    """The Decoder of a run, beside what is known; loops are no candidates where train has none."""
    n, r = len(run.entities), len(run.relations)
    index = KnownTails(known_triples(dataset, known), n, r)
    excluded = KnownAndLoops(index, without_loops(dataset.train, r))
    return Decoder(run.best_model(), calibrated_run(run, folder), run_bounds(run), index, excluded)


def pairs_to_complete(run, dataset, relation):
    """The (h, r) in scope, of one relation by name or of all."""
    chosen = None if relation is None else [id_of(run.relations, relation, "relation", run.prefixes)]
    return scope_pairs(dataset.train, len(run.entities), len(run.relations), chosen, run.types)


def complete_part(folder, what, part, out, data, threads):
    """Write what `probable` finds of a range of the (h, r) in scope, as .npz: what a worker of a cluster does. what:
    Completing, without a precision."""
    run, dataset = open_run(folder, data)
    heads, relations = (each[slice(*part)] for each in pairs_to_complete(run, dataset, what.relation))
    decoder = fact_decoder(run, dataset, folder, what.known)
    file = io.BytesIO()
    np.savez(file, *probable(decoder, heads, relations, what.least, threads))
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


def complete_run(folder, what, out, data, threads, cluster=None):
    """Write the new facts (what: Completing) of all (h, r) in scope, best first. cluster: the address of a Dask
    scheduler, whose workers look for them; data: where these find the run's data now."""
    run, dataset = open_run(folder, data)
    write = writer_of(out, run, dataset)
    heads, relations = pairs_to_complete(run, dataset, what.relation)
    decoder = fact_decoder(run, dataset, folder, what.known)
    with counter("completed: (h, r)") as progress:

        def look(least):
            if not cluster:
                return probable(decoder, heads, relations, least, threads, progress)
            command = ["complete", os.path.abspath(folder), "--known", what.known, "--out", "/dev/stdout"]
            command += ["--relation", what.relation] * (what.relation is not None)
            command += ["--data", str(data)] * (data is not None)
            command += ["--model", LOADED[run.settings.model]] if run.settings.model in LOADED else []
            sizes = len(heads), len(run.entities)
            return probable_on_cluster(command, *sizes, cluster, threads or 1, progress, least)

        triples, p, contradicted = complete(decoder, heads, relations, what.least, what.precision, look)
    if contradicted:
        warn(f"{contradicted:,} (h, r) have other numbers of known tails than their bounds allow; they get no new ones")
    names = [run.entities, run.relations, run.entities]
    facts = [[name[i] for name, i in zip(names, triple, strict=True)] for triple in triples.tolist()]
    blank = sum(head.startswith("_:") or tail.startswith("_:") for head, _, tail in facts)
    if blank and out is not None and format_of(out):
        warn(
            f"{blank:,} of the new facts are about blank nodes (_:...): `import` takes the IRIs that are written for"
            " them for these nodes, after the graph's own file; another program cannot know whom they mean"
        )
    lines = write(zip(facts, p, strict=True))
    if out is None:
        for line in lines:
            click.echo(line, nl=False)
        if not len(p):
            say(f"no new fact of {len(heads):,} (h, r) is accepted", err=True)
        return
    replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines))
    expected = f", of which {p.sum():,.0f} are expected to be true" if len(p) else ""
    say(f"{out}: {len(p):,} new facts of {len(heads):,} (h, r){expected}")


def writer_of(out, run, dataset):
    """A generator of lines of (names, probability): TSV, or N-Triples where the file's name ends in .nt, or in that of
    another format of RDF of which N-Triples are a part; CardkgeError for the others. A name that stands as a head, or
    as a relation, is an IRI wherever it stands, even one in double quotes, as a literal is written."""
    kind = None if out is None else format_of(out)
    if kind not in (None, "N_TRIPLES", "N_QUADS", "TURTLE", "TRIG"):
        raise CardkgeError(f"{out}: new facts are written as TSV or N-Triples; end the name in .tsv or .nt")

    def tsv(facts):
        for names, p in facts:
            yield "\t".join([*names, f"{p:.6g}"]) + "\n"

    if kind is None:
        return tsv
    prefixes = read_prefixes(dataset.folder / "prefixes.tsv")
    heads = {run.entities[head] for head in np.unique(dataset.known[:, 0]).tolist()}
    quoted = {name for name in heads.union(run.relations) if is_literal(name)}

    def term(name):
        return made_term(name) if name in quoted else prefixes.term(name)

    def n_triples(facts):
        for names, _ in facts:
            yield " ".join(map(term, names)) + " .\n"

    return n_triples
