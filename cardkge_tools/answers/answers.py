"""Answers: the likeliest completions of a triple, with what is known of them."""

import itertools
import math

import click
import numpy as np

import kernels
from cardkge import CardkgeError, cardinality_sums
from cardkge_tools.answers.decoding import acceptable, room_left
from cardkge_tools.answers.facts import fact_decoder
from cardkge_tools.answers.opening import aligned_data
from cardkge_tools.answers.runs import load_run
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.ranking import completions, exact_scores, exact_sums, rank_triples
from cardkge_tools.engine.threads import Threads
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.graph.graphs import known_answers
from cardkge_tools.graph.spelling import found as id_of
from cardkge_tools.shell.files import is_stdout, read_blocks, refuse_the_same, replace_file, write_json
from cardkge_tools.shell.terminal import interval, table, warn


class Answers:
    """The completions of a run's triples. p is calibrated, and conditioned on the run's bounds, where the run is
    calibrated and its data is there; else sigma of the score."""

    def __init__(self, folder, data=None, needed=False):
        self.run = run = load_run(folder)
        self.model, self.bounds, self.source = run.best_model(), run.bounds, ""
        self.dataset = self.loopless = None
        self.soft = ""  # said where mined bounds are no limits
        self.calibrated = False  # whether probabilities are decoded from the calibration
        self.decoder = None, None  # the last relation that was asked for, and its Decoder
        self.heads = None  # of the last (?, r, t) that bounds of its tail condition: known and expected heads, bounds
        try:
            self.dataset = aligned_data(run, folder, data, download=False)
        except CardkgeError as error:
            if needed or data:
                raise
            warn(f"known triples are not marked: {error}")
            return
        if run.calibration is not None and run.calibration.prior is not None:
            self.source, self.soft = " (mined)", "; given the counts of train and valid, for which it is no limit"
        elif not run.bounds.any():
            self.bounds, self.source = find_bounds("mined", self.dataset)[0], " (mined)"
        if run.settings.no_loops:
            self.loopless = without_loops(self.dataset.train, self.dataset.n_relations)
        self.folder, self.calibrated = folder, run.calibration is not None
        if run.settings.loss == "softmax" and not self.calibrated:
            warn(f"{folder} is not calibrated: sigma(score) stands for the probability, and says nothing under softmax")

    def complete(self, relation, head=None, tail=None):
        """A generator of (entity, split it is known from or None, p, score, whether accepted, expected count or None),
        best score first."""
        given, entity = (0, head) if tail is None else (2, tail)
        known = known_answers(self.dataset, given, entity, relation) if self.dataset else {}
        hidden = {entity} - known.keys() if self.loopless is not None and self.loopless[relation] else ()
        answers = zip(*completions(self.model, relation, head, tail), strict=True)
        answers = ([e, known.get(e), p, score, None, None] for e, p, score in answers if e not in hidden)
        bounded = tail is not None and self.calibrated and self._of_tail(relation, tail) != (0, math.inf)
        while part := list(itertools.islice(answers, self.model.n_entities if tail is None or bounded else 64)):
            for start in range(0, len(part) if self.calibrated else 0, 64 if bounded else len(part)):
                self._decode(part[start : start + 64] if bounded else part, relation, head, tail)
            if bounded:
                self._condition_heads(part, relation, tail)
            yield from part

    def _of_tail(self, relation, tail):
        """(lower, upper): the run's bounds on the number of heads of (r, t)."""
        return tuple(self.run.bounds.of(relation, [tail], inverse=True)[0].tolist())

    def _condition_heads(self, part, relation, tail):
        """Conditions the p of all heads of (?, r, t), of which each is given the bounds of its (h, r), on the bounds of
        (r, t); accepted are no more than it has room for. Bounds that cannot hold leave nothing new."""
        lower, upper = self._of_tail(relation, tail)
        known = sum(bool(answer[1]) for answer in part)
        new = [answer for answer in part if not answer[1] and answer[2] > 0]
        least, most = max(math.ceil(lower) - known, 0), upper - known
        p = np.zeros(len(new))
        if least <= min(most, len(new)):
            with np.errstate(divide="ignore"):
                given = np.array([answer[2] for answer in new])
                odds = np.clip(np.log(given) - np.log1p(-given), -1e6, 1e6)
                limits = np.array([[least], [most]], float)
                kernels.condition_sets(0, 1, np.array([0, len(new)]), odds, *limits, np.ones((1, 1)), p)
        for answer, probable in zip(new, p.tolist()):
            answer[2], answer[4] = probable, False
        best = sorted((answer for answer in new if answer[2] > 0.5), key=lambda answer: -answer[2])
        for answer in best[: int(min(max(most, 0), len(best)))]:
            answer[4] = True
        bound = [lower, None if math.isinf(upper) else upper]
        self.heads = {"known": known, "expected": known + float(p.sum()), "bounds": bound}

    def _decoder_of(self, relation):
        """The Decoder of all (h, r) of a relation, kept as long as it is asked for."""
        if self.decoder[0] != relation:
            everyone = np.arange(self.model.n_entities)
            pairs = everyone, np.full(len(everyone), relation)
            self.decoder = relation, fact_decoder(self.run, self.dataset, self.folder, *pairs, "all")
            self.decoder[1].floor = 1e-300  # however improbable, it is shown
        return self.decoder[1]

    def _decode(self, part, relation, head, tail):
        """Fills in p, whether accepted, and the expected count, of answers to one question."""
        heads = np.array([head] if tail is None else [answer[0] for answer in part])
        relations = np.full(len(heads), relation)
        if tail is None:  # with the ties of the order that they are shown in
            scores = exact_scores(self.model, relation, head)[None]
        else:
            scores = np.ascontiguousarray(self.model.score_tails(heads, relations))
        decoder = self._decoder_of(relation)
        found = decoder.decode(heads, relations, scores)
        p, accepted = np.zeros(scores.shape), np.zeros(scores.shape, bool)
        p[found["row"], found["ids"]] = found["p"]
        places = acceptable(found, room_left(decoder.bounds.of(relations, heads), found["known"]), 0.5)
        accepted[found["row"][places], found["ids"][places]] = True
        expected = found["known"] + np.bincount(found["row"], found["p"], len(heads))
        for i, answer in enumerate(part):
            row, t = (0, answer[0]) if tail is None else (i, tail)
            answer[2] = 1.0 if answer[1] else float(p[row, t])
            answer[4:] = bool(answer[1]) or bool(accepted[row, t]), float(expected[row])

    def counts(self, relation, head):
        """How many tails of (h, r) are known, and how many are expected, the known ones among them."""
        known = known_answers(self.dataset, 0, head, relation)
        return len(known), next(self.complete(relation, head))[5]

    def limits(self, relation, heads):
        """(n, 2): the bounds of these heads, those of the run or mined ones."""
        return self.bounds.of(relation, heads)

    def report(self, chosen, sums, relation, heads, query):
        """Answers as JSON: the query, its bounds, X_hr, expected counts, and what the table says of each."""
        names = ("entity", "known", "probability", "score", "accepted")
        rows = [dict(zip(names, [self.run.entities[each[0]], *each[1:5]])) for each in chosen]
        answers = [{"rank": rank} | row for rank, row in enumerate(rows, 1)]
        bounds = [[None if math.isinf(x) else float(x) for x in pair] for pair in self.limits(relation, heads)]
        bounds = bounds[0] if query["tail"] is None else bounds
        return {"query": query, "bounds": bounds, "x": sums.tolist(), "answers": answers} | self.expected(chosen, query)

    def expected(self, chosen, query):
        """{"expected": a count for the head, or for each head of the answers}, where the run is calibrated."""
        if not (self.calibrated and chosen):
            return {}
        found = {"expected": chosen[0][5] if query["tail"] is None else [each[5] for each in chosen]}
        return found | ({"heads": self.heads} if self.heads else {})


def show_completions(folder, head, relation, tail, top, min_probability, hide_known, data, json_file=None):
    """The likeliest tails of (head, relation, ?), or heads of (?, relation, tail), as a table; and how many are
    expected, beside the bound. json_file: also as JSON, a list of the answers with what the table says of each."""
    answers = Answers(folder, data, hide_known)
    run = answers.run
    r = id_of(run.relations, relation, "relation", run.prefixes)
    entity = id_of(run.entities, head if tail is None else tail, "entity", run.prefixes)
    everything = answers.complete(r, **{"head" if tail is None else "tail": entity})
    shown = (each for each in everything if each[2] >= min_probability and not (hide_known and each[1]))
    chosen = list(itertools.islice(shown, top))
    heads = [entity] if tail is None else [each[0] for each in chosen]
    sums = cardinality_sums(answers.model, r, heads)
    limits = [interval(*pair) for pair in answers.limits(r, heads)]
    if json_file:
        write_json(
            json_file, answers.report(chosen, sums, r, heads, {"head": head, "relation": relation, "tail": tail})
        )
    if is_stdout(json_file):
        return
    rows = [
        [str(rank), run.entities[e], known or "-", f"{p:.4f}", f"{score:.4f}", "yes" if accepted else "-"]
        for rank, (e, known, p, score, accepted, _) in enumerate(chosen, 1)
    ]
    headers = ["rank", "entity", "known", "probability", "score", "accepted"]
    if not answers.calibrated:
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    if tail is not None:
        counts = [each[5] for each in chosen] if answers.calibrated else sums
        what = "expected" if answers.calibrated else "X_hr"
        rows = [[*row, f"{x:.2f}", limit] for row, x, limit in zip(rows, counts, limits, strict=True)]
        table(rows, [*headers, what, "bound"], "rll")
        click.echo(
            f"{'expected tails' if answers.calibrated else 'X_hr'} of each head, beside its bound"
            f"{answers.source}{answers.soft}"
        )
        if answers.heads:
            known, expected, (lower, upper) = answers.heads.values()
            bound = interval(lower, math.inf if upper is None else upper)
            click.echo(f"expected heads of the tail = {expected:.2f}, of which {known} known, bound {bound}")
        return
    table(rows, headers, "rll")
    bound = f"bound {limits[0]}{answers.source}"
    if answers.calibrated:
        known, expected = answers.counts(r, entity)
        given = "; the run has no bounds, and is not conditioned" if not run.bounds.any() else answers.soft
        click.echo(f"expected count = {expected:.2f}, of which {known} known, {bound}{given}")
    click.echo(f"X_hr = {sums[0]:.2f}, {bound}")


def show_triple(folder, head, relation, tail, data, json_file=None):
    """The score and the probability of one triple, and its ranks as a tail and as a head, raw and filtered."""
    answers = Answers(folder, data, True)
    run, dataset = answers.run, answers.dataset
    h, t = (id_of(run.entities, name, "entity", run.prefixes) for name in (head, tail))
    r = id_of(run.relations, relation, "relation", run.prefixes)
    model, triple = run.best_model(), np.array([[h, r, t]], np.int32)
    score = float(exact_scores(model, r, head=h)[t])
    p = next((answer[2] for answer in answers.complete(r, head=h) if answer[0] == t), 0.0)  # 0: a loop that is none
    ranks = rank_triples(model, triple, dataset.known)
    x = {"x_hr": exact_sums_of(model, False, r, h), "x_rt": exact_sums_of(model, True, r, t)}
    report = {
        "head": head, "relation": relation, "tail": tail, "score": score, "probability": float(p),
        "known": known_answers(dataset, 0, h, r).get(t),
        **{setting: {"head": ranks[setting][0, 0], "tail": ranks[setting][0, 1]} for setting in ("raw", "filtered")},
        **x,
    }  # fmt: skip
    if json_file:
        write_json(json_file, report)
    if is_stdout(json_file):
        return
    click.echo(f"score {score:.4f}, probability {report['probability']:.4f}, known: {report['known'] or 'no'}\n")
    rows = [
        [f"as {side}", *(f"{report[setting][side]:g}" for setting in ("raw", "filtered"))] for side in ("tail", "head")
    ]
    table(rows, ["rank", "raw", "filtered"])
    click.echo(f"tails of the head: X = {x['x_hr']:.2f}, bound {interval(*answers.limits(r, [h])[0])}{answers.source}")
    bound = interval(*run.bounds.of(r, [t], inverse=True)[0])
    click.echo(f"heads of the tail: X = {x['x_rt']:.2f}, bound {bound}")


def exact_sums_of(model, inverse, relation, subject):
    with Threads(1) as threads:
        return float(exact_sums(model, inverse, np.array([relation]), np.array([subject]), threads)[0])


def answer_queries(folder, queries, top, min_probability, hide_known, data, out):
    """Answers to the queries in a file, `head<TAB>relation` or `?<TAB>relation<TAB>tail` a line: lines of head,
    relation, tail, probability, score and the split it is known from (- for none), best first in each."""
    if out is not None:
        refuse_the_same(queries, out)
    answers = Answers(folder, data, hide_known)
    run = answers.run
    entities, relations = ({name: i for i, name in enumerate(names)} for names in (run.entities, run.relations))

    def lines():
        for _, head, relation, tail in read_queries(queries, entities, relations, run.prefixes):
            side = {"head": entities[head]} if tail is None else {"tail": entities[tail]}
            found = answers.complete(relations[relation], **side)
            shown = (each for each in found if each[2] >= min_probability and not (hide_known and each[1]))
            for e, known, p, score, _, _ in itertools.islice(shown, top):
                names = (head, relation, run.entities[e]) if tail is None else (run.entities[e], relation, tail)
                yield "\t".join([*names, f"{p:.6g}", f"{score:.6g}", known or "-"]) + "\n"

    if out is None:
        for line in lines():
            click.echo(line, nl=False)
    else:
        replace_file(out, lambda file: file.writelines(line.encode("utf-8") for line in lines()))


def read_queries(path, entities, relations, prefixes=None):
    """Yield (line number, head, relation, None) or (line number, None, relation, tail) of a file of queries;
    CardkgeError where a line is none, or a name is unknown."""
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if not line.strip():
                continue
            fields = line.split("\t")
            head, relation, tail = [*fields, "?", "?"][:3] if len(fields) in (2, 3) else ("", "", "")
            if (head == "?") == (tail == "?"):
                form = "head<TAB>relation, or ?<TAB>relation<TAB>tail"
                raise CardkgeError(f"{path}:{at}: not a query, {line[:80]!r}; expected {form}")
            given = _known_name(entities, tail if head == "?" else head, "entity", f"{path}:{at}", prefixes)
            relation = _known_name(relations, relation, "relation", f"{path}:{at}", prefixes)
            yield at, *((None, relation, given) if head == "?" else (given, relation, None))


def _known_name(names, name, kind, where, prefixes):
    """The name as the run spells it, with a warning where that is another way."""
    if name in names:
        return name
    try:
        spelt = list(names)
        return spelt[id_of(spelt, name, kind, prefixes)]
    except CardkgeError as error:
        raise CardkgeError(f"{where}: {error}") from error
