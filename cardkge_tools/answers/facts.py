"""The new facts of a run: calibrated, completed, written; here or on a cluster."""

import copy
import dataclasses
import functools
import io
import itertools
import os

import click
import numpy as np

from cardkge import CardkgeError
from cardkge_tools import SPLITS
from cardkge_tools.answers.calibration import CountPrior, calibrate, learn_counts
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
from cardkge_tools.answers.missing import SOURCES, missing_facts, read_missing, unseen_tails, with_share
from cardkge_tools.answers.odds import GUESS
from cardkge_tools.answers.opening import open_run, read_queries
from cardkge_tools.answers.runs import save_calibration
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.own import LOADED
from cardkge_tools.engine.ranking import check_finite
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.graph.bounds import GraphBounds, bound_of_fields, tsv_text
from cardkge_tools.graph.rdf import format_of, is_literal, made_term, read_prefixes
from cardkge_tools.graph.spelling import id_of
from cardkge_tools.shell.files import replace_file
from cardkge_tools.shell.terminal import counted, counter, say, this_command, warn
from cardkge_tools.shell.workers import carry_out_on_cluster, output_of, this_program

FEW, SOME = 10, 100  # facts of valid: with SOME or more, a share measured on them has a standard error below 5 points
ASSUMED = "assumed: p speaks of facts like those of test; where more is missing, more is true than promised"


@dataclasses.dataclass(frozen=True)
class Fitting:
    """The choices of a fit: bounds as in `find_bounds` (None: those of the run); missing, a file of missing facts;
    elsewhere, what is assumed of relations without numbers ("none", "pooled"); share, the share v of all relations."""

    bounds: str | None = None
    missing: str | None = None
    elsewhere: str = "none"
    share: float | None = None


def calibrate_run(run, dataset, folder, threads, how=None, quiet=False):
    """Calibrates a run on the valid split of its data and saves the calibration in its folder; how: a Fitting; quiet:
    messages go to stderr. Returns the Missing that v comes from."""
    how = how or Fitting()
    if run.settings.final:
        raise CardkgeError(f"{folder}: trained on valid too, it keeps the calibration of the run it was made from")
    check_finite(run.best_model().params)
    sizes = len(run.entities), len(run.relations)
    fresh = len(KnownTails(dataset.valid, *sizes).without(KnownTails(dataset.train, *sizes)).keys)
    if not len(dataset.valid):
        raise CardkgeError("calibration: valid is empty, and only held-out facts can teach it; hold some out (`split`)")
    if not fresh:
        raise CardkgeError(
            f"calibration: the facts of valid ({len(dataset.valid):,}) all stand in train too and teach nothing about"
            " new ones; hold out others (`split`)"
        )
    mined = (how.bounds or run.settings.bounds) == "mined"  # mined bounds are no limits: `learn_counts`
    bounds = no_bounds(run) if mined else run.bounds if how.bounds is None else found_bounds(how.bounds, dataset)
    missing = missing_of(run, dataset, bounds, how)
    with counter("calibrating: (h, r)") as progress:
        splits = dataset.train, dataset.valid
        run.calibration = calibrate(run.best_model(), splits, missing, bounds, threads, progress, types=run.types)
    text = None if how.bounds is None else text_of(bounds)
    run.calibration = dataclasses.replace(run.calibration, bounds=text, missing=missing)
    if mined:
        run.calibration = dataclasses.replace(run.calibration, prior=_prior_of(run, dataset, threads))
    save_calibration(run, folder)
    held = missing.valid.sum(), missing.test.sum(), np.maximum(missing.elsewhere, 0).sum()
    where = ", ".join(f"{missing.source.count(source):,} {source}" for source in SOURCES if source in missing.source)
    say(
        f"calibrated on valid, which is taken for {held[0] / sum(held):.3g} of the facts that train lacks: {held[0]:,},"
        f" beside {held[1]:,} of test and {held[2]:,.0f} that no file has (relations: {where})",
        err=quiet,
    )
    if "assumed" in missing.source:
        say(ASSUMED, err=quiet)
    for r in np.flatnonzero(run.calibration.unseen).tolist():
        say(
            f"{run.relations[r]}: its numbers count tails that the graph lacks ({missing.unseen[r]:.0%} of the new"
            " ones, by how those known repeat), and may exceed what the graph can answer",
            err=quiet,
        )
    if fresh < FEW:
        warn(
            f"calibrated on {counted(fresh, 'new fact')} of valid: p orders answers well, but may promise"
            " two or four times what is true; hold out some dozens of facts (`split --valid`) before you rely on it"
        )
    elif fresh < SOME:
        warn(
            f"calibrated on {fresh} new facts of valid: a share measured on them has a standard error of up to"
            f" {50 / fresh**0.5:.0f} points, and so has p; hold out more (`split --valid`) if you can"
        )
    return missing


def calibrated_run(run, folder):
    """The calibration of a run; CardkgeError where it has none."""
    if run.calibration is None:
        raise CardkgeError(f"{folder}: not calibrated yet; first: {this_command()} calibrate {folder}")
    return run.calibration


def fitted_with_loops(run, dataset, folder, bounds, threads):
    """The calibration of a run, fitted anew through these Bounds with loops as candidates, and not saved: a fit without
    loops does not apply to them."""
    found = calibrated_run(run, folder)
    if run.settings.final:
        raise CardkgeError(f"{folder}: --loops fits anew on valid, but this run was trained on it; give the run before")
    limits, options = None if isinstance(bounds, CountPrior) else bounds, {"types": run.types, "loops": True}
    splits, share = (dataset.train, dataset.valid), found.share
    if found.missing is not None:  # a file has no u_r: the facts say it
        recorded = KnownTails(known_triples(dataset, "all"), len(run.entities), len(run.relations))
        share = dataclasses.replace(found.missing, unseen=unseen_tails(recorded, len(run.relations)))
    fitted = calibrate(run.best_model(), splits, share, limits, threads, **options)
    return dataclasses.replace(fitted, missing=found.missing)


def missing_of(run, dataset, bounds, how):
    """The Missing of a graph with these GraphBounds, as a Fitting asks."""
    given = None
    if how.missing is not None:
        recorded = KnownTails(known_triples(dataset, "all"), len(run.entities), len(run.relations)).keys
        most = len(run.entities) ** 2
        most = most - np.bincount(recorded // most, minlength=len(run.relations))
        given = read_missing(how.missing, run.relations, run.prefixes, most)
    missing = missing_facts(dataset, bounds, given, how.elsewhere, run.types)
    return missing if how.share is None else with_share(missing, how.share)


def no_bounds(run):
    """GraphBounds of a run's graph without a bound."""
    return GraphBounds([], run.relations, run.types, run.entities)


def found_bounds(what, dataset):
    """The GraphBounds of `find_bounds`, with a warning for each of its notes."""
    bounds, notes = find_bounds(what, dataset)
    for note in notes:
        warn(note)
    return bounds


def text_of(bounds):
    """The text of a file of these GraphBounds; equal bounds give equal texts."""
    text = tsv_text([bound for bound in bounds.listed() if bound.lower > 0 or bound.upper < np.inf])
    return "\n".join(sorted(text.removeprefix("\ufeff").split("\n")[:-1]))


def run_bounds(run):
    """The Bounds that condition the answers of a run: those of its calibration. With mined bounds this is a CountPrior,
    because the largest number in train is no limit."""
    found = run.calibration
    if found is None or (found.prior is None and found.bounds is None):
        return run.bounds
    if found.prior is not None:
        return found.prior
    fields = (line.split("\t") for line in found.bounds.split("\n") if line)
    bounds = [bound_of_fields(each, "calibration.json", run.relations) for each in fields]
    return GraphBounds(bounds, run.relations, run.types, run.entities)


def bounds_in_use(run, dataset, folder, given=None, threads=None):
    """The Bounds that condition answers: those given, as `find_bounds` names them, with a warning where the calibration
    was fitted through others; else `run_bounds`. CardkgeError where they have no lower bound in a relation whose heads
    all had one at the fit, which does not say then how many tails there are without it."""
    fitted = run_bounds(run)
    prior = isinstance(fitted, CountPrior)
    if given is None or (given == "mined" and prior):
        return fitted
    bounds = None if given == "mined" else found_bounds(given, dataset)
    if given == "mined" or prior or text_of(bounds) != text_of(fitted):
        everyone = np.arange(len(run.entities))
        for r in np.flatnonzero(~run.calibration.has_scale(np.arange(len(run.relations)))).tolist():
            before, after = (each is not None and each.of(r, everyone)[:, 0].any() for each in (fitted, bounds))
            if before and not after:
                raise CardkgeError(
                    f"--bounds {given}: no lower bound in {run.relations[r]}, and the calibration was fitted where"
                    " (nearly) all its heads have one, so it does not say how many tails there are without; first:"
                    f" {this_command()} calibrate {folder} --bounds {given}"
                )
        warn(
            f"--bounds {given}: the calibration was fitted through other bounds; p is more reliable"
            f" after: {this_command()} calibrate {folder} --bounds {given}"
        )
    return _prior_of(run, dataset, threads) if given == "mined" else bounds


def _prior_of(run, dataset, threads):
    """The CountPrior of a calibrated run."""
    splits = dataset.train, dataset.valid
    return learn_counts(run.best_model(), run.calibration, *splits, run.settings.seed, threads, run.types)


# ------------------------------------------------------------------------------------------------------------------
# complete
# ------------------------------------------------------------------------------------------------------------------

PARTS, PART_SCORES = 16, 2**33  # on a cluster: at least so many parts, each of at most so many scores (half a minute)


@dataclasses.dataclass(frozen=True)
class Completing:
    """What `complete` looks for: new facts of a relation (None: of all), beside the known triples of train, of train
    and valid ("valid") or of all splits, accepted as in `decoding.complete`. bounds: as in `bounds_in_use`; queries: a
    file of (h, r) in place of the scope; guess: include completions that only a lower bound requires."""

    relation: str | None = None
    known: str = "all"
    least: float = 0.5
    precision: float | None = None
    bounds: str | None = None
    queries: str | None = None
    guess: bool = False


def known_triples(dataset, known):
    """The triples of train, of train and valid ("valid"), or of all splits ("all")."""
    count = {"train": 1, "valid": 2, "all": 3}[known]
    return np.concatenate([getattr(dataset, split) for split in SPLITS[:count]])


def fact_decoder(run, dataset, folder, known, bounds):
    """The Decoder of a run beside the known triples, given these Bounds; loops are candidates only where train has
    some."""
    n, r = len(run.entities), len(run.relations)
    index = KnownTails(known_triples(dataset, known), n, r)
    excluded = KnownAndLoops(index, without_loops(dataset.train, r))
    return Decoder(run.best_model(), calibrated_run(run, folder).knowing(known), bounds, index, excluded)


def _decoder_of(what, run, dataset, folder, threads):
    """The Decoder for a Completing."""
    calibrated_run(run, folder)
    bounds = bounds_in_use(run, dataset, folder, what.bounds, threads)
    decoder = fact_decoder(run, dataset, folder, what.known, bounds)
    decoder.with_guesses = what.guess
    return decoder


def pairs_to_complete(run, dataset, what):
    """The (h, r) of the queries, or else those in scope, of one named relation or of all; by relation, head."""
    if what.queries is not None:
        entities, relations = ({name: i for i, name in enumerate(names)} for names in (run.entities, run.relations))
        pairs = set()
        for at, head, relation, _ in read_queries(what.queries, entities, relations, run.prefixes):
            if head is None:
                raise CardkgeError(f"{what.queries}:{at}: a query for heads; `complete` takes head<TAB>relation")
            pairs.add((relations[relation], entities[head]))
        found = np.array(sorted(pairs), np.int32).reshape(-1, 2)
        return found[:, 1].copy(), found[:, 0].copy()
    relation = what.relation
    chosen = None if relation is None else [id_of(run.relations, relation, "relation", run.prefixes)]
    return scope_pairs(dataset.train, len(run.entities), len(run.relations), chosen, run.types)


def complete_part(folder, what, part, out, data, threads):
    """Writes the result of `probable` for a range of the (h, r) in scope, as .npz: the work of one cluster worker.
    what: Completing, without a precision."""
    run, dataset = open_run(folder, data)
    heads, relations = (each[slice(*part)] for each in pairs_to_complete(run, dataset, what))
    decoder = _decoder_of(what, run, dataset, folder, threads)
    file = io.BytesIO()
    np.savez(file, *probable(decoder, heads, relations, what.least, threads))
    replace_file(out, lambda stream: stream.write(file.getvalue()))


def probable_on_cluster(command, places, n_entities, address, threads, progress, least):
    """`probable`, done by the workers of a Dask scheduler: parts of whole blocks of the `open_pairs`, so that the bits
    are the same. places: of these among all pairs, and last the number of all.

    command: the arguments of the `complete` that a worker runs for a part, without its range and `least`.
    """
    block = block_of(n_entities)
    size, n_pairs = max(1, min(len(places) // PARTS, PART_SCORES // n_entities) // block) * block, int(places[-1])
    limits = [0, *places[size:-1:size].tolist(), n_pairs]
    tasks, parts, done = [], {}, 0
    for part in itertools.pairwise(map(str, limits)):
        tasks.append(this_program() | {"command": [*command, "--min-probability", repr(least), "--part", *part]})

    def report(task, result):
        nonlocal done
        content, error = result
        if error:
            raise CardkgeError(f"a worker: {error.removeprefix('error: ')}")
        first, last = map(int, task["command"][-2:])
        with np.load(io.BytesIO(content)) as arrays:
            parts[first] = tuple(arrays[name] for name in arrays.files)
        done += last - first
        progress(done, n_pairs)

    nothing = "nothing has been written"
    carry_out_on_cluster(tasks, functools.partial(output_of, threads=threads), address, report, nothing)
    return joined_parts(parts)


def write_completeness(run, decoder, pairs, path, threads):
    """Writes a line for each (h, r) of pairs (heads, relations): head, relation, number of known tails, expected
    number, and probability that no further tail exists, both given the bounds and empty where the data contradicts
    them."""
    heads, relations = pairs
    decoder, blocks = copy.copy(decoder), {}
    decoder.with_none = True

    def consume(first, last, decoded):
        columns = decoded.known, decoded.expected(), decoded.none, decoded.contradicted
        blocks[first] = list(zip(*(column.tolist() for column in columns), strict=True))

    with counter("counted: (h, r)") as progress:
        decoder.run(heads, relations, threads, consume, progress)
    counts = itertools.chain.from_iterable(blocks[first] for first in sorted(blocks))
    lines = (
        f"{run.entities[h]}\t{run.relations[r]}\t{known}\t" + ("\t" if never else f"{expected:.6g}\t{none:.6g}") + "\n"
        for h, r, (known, expected, none, never) in zip(heads.tolist(), relations.tolist(), counts, strict=True)
    )
    replace_file(path, lambda file: file.writelines(line.encode("utf-8") for line in lines))
    say(f"{path}: known and expected numbers of tails of {len(heads):,} (h, r)", err=True)


def complete_run(folder, what, out, data, threads, cluster=None, completeness=None):
    """Writes the new facts (what: Completing) of all (h, r) in scope, best first. cluster: the address of a Dask
    scheduler whose workers find them; data: where the run's data is; completeness: a file for `write_completeness`."""
    run, dataset = open_run(folder, data)
    if cluster and what.bounds == "mined" and calibrated_run(run, folder).prior is None:  # parts would each learn it
        raise CardkgeError(
            f"--cluster: what counts teach is learnt once; first: {this_command()} calibrate {folder} --bounds mined"
        )
    write = writer_of(out, run, dataset)
    heads, relations = pairs_to_complete(run, dataset, what)
    decoder = _decoder_of(what, run, dataset, folder, threads)
    if completeness is not None:
        write_completeness(run, decoder, (heads, relations), completeness, threads)
    with counter("completed: (h, r)") as progress:

        def look(least):
            if not cluster:
                return probable(decoder, heads, relations, least, threads, progress)
            command = ["complete", os.path.abspath(folder), "--known", what.known, "--out", "/dev/stdout"]
            options = {"--relation": what.relation, "--data": data}
            options["--bounds"] = None if what.bounds is None else absolute_bounds(what.bounds)
            options["--queries"] = None if what.queries is None else os.path.abspath(what.queries)
            for option, value in options.items():
                command += [] if value is None else [option, str(value)]
            command += ["--guess"] * what.guess
            command += ["--model", LOADED[run.settings.model]] if run.settings.model in LOADED else []
            places = np.append(decoder.open_pairs(heads, relations, least)[0], len(heads))
            return probable_on_cluster(command, places, len(run.entities), cluster, threads or 1, progress, least)

        triples, p, (contradicted, guesses) = complete(decoder, heads, relations, what.least, what.precision, look)
    if contradicted:
        warn(f"{contradicted:,} (h, r) contradict their bounds by their numbers of known tails, and get no new ones")
    if guesses:
        warn(
            f"{guesses:,} (h, r) have a lower bound above what the model expects (a chance below"
            f" {GUESS:g}); the completions that would meet it are guesses, left out without --guess"
        )
    names = [run.entities, run.relations, run.entities]
    facts = [[name[i] for name, i in zip(names, triple, strict=True)] for triple in triples.tolist()]
    blank = sum(head.startswith("_:") or tail.startswith("_:") for head, _, tail in facts)
    if blank and out is not None and format_of(out):
        warn(
            f"{blank:,} of the new facts are about blank nodes (_:...): `import` can read the IRIs written for"
            " them, after the graph's own file; other programs cannot"
        )
    lines = write(zip(facts, p, strict=True))
    if out is None:
        for line in lines:
            click.echo(line, nl=False)
        if not len(p):
            say(f"no new fact of {len(heads):,} (h, r) is accepted", err=True)
        return
    replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines))
    expected = f"; {p.sum():,.0f} are expected to be true" if len(p) else ""
    say(f"{out}: {counted(len(p), 'new fact')} of {len(heads):,} (h, r){expected}")


def absolute_bounds(bounds):
    """The value of --bounds for a process in another folder."""
    if bounds in ("none", "mined"):
        return bounds
    files = [bounds] if os.path.exists(bounds) else [part.strip() for part in bounds.split(",")]
    return ",".join(map(os.path.abspath, files))


def writer_of(out, run, dataset):
    """A generator of lines from (names, probability): TSV, or N-Triples where the file name ends in .nt or in the
    suffix of another RDF format that contains N-Triples; CardkgeError for other RDF formats. A name that occurs as a
    head or a relation is an IRI everywhere, even in double quotes like a literal."""
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
