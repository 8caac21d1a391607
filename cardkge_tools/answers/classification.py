"""True or false: triples with labels, a logistic model of them for each relation, and how good it is.

The triples to be labelled are not known: one that also stands in train is left out of all counts taken there."""

import functools
from dataclasses import dataclass

import numpy as np

from cardkge import CardkgeError, as_bounds, logistic_loss, probability, triple_keys
from cardkge_tools.answers.calibration import minimise
from cardkge_tools.answers.decoding import Decoder, KnownAndLoops, KnownTails, spread
from cardkge_tools.answers.facts import calibrated_run, run_bounds
from cardkge_tools.answers.measures import Tally
from cardkge_tools.answers.odds import room_left
from cardkge_tools.answers.opening import open_to_measure
from cardkge_tools.definitions.counting import log_sum_exp
from cardkge_tools.definitions.measures import label_metrics
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.shell.files import read_fields, write_report
from cardkge_tools.shell.terminal import counted, counter, say, shown, table, warn

FORM = "head, relation, tail, label with tabs between"
LABELS = {"1": True, "0": False, "-1": False}
PRECISIONS = 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0  # of a relation's prior; cross-validation within valid chooses one
FOLDS = 5
SMOOTHING = 5.0  # heads added to those that have a neighbour, with tails as frequent as they are under r
HUB = 50  # facts of an entity; one with more leads to no further neighbours: they tell little about h
NEIGHBOURS = 2**22  # looked at together, unless one entity has more: some hundreds of MiB


# --- the file


def read_labelled(path, entities, relations, skip_unknown=False):
    """(triples (n, 3) int32, labels (n,) bool) of a file, `head, relation, tail, label` a line with tabs between, the
    label 1, 0 or -1. entities, relations: the names of the run. Unknown names are an error that counts them, or, with
    skip_unknown, their lines are left out with a warning. CardkgeError for another form, or where no triple is left."""
    ids = [{name: i for i, name in enumerate(names)} for names in (entities, relations, entities)]
    rows, labels, unknown, left = [], [], {}, 0
    for at, (*names, label) in read_fields(path):
        if len(names) != 3 or "" in names:
            found = "an empty name" if len(names) == 3 else f"{len(names) + 1} fields"
            raise CardkgeError(f"{path}:{at}: expected head, relation, tail, label with tabs between, found {found}")
        if label not in LABELS:
            raise CardkgeError(f"{path}:{at}: expected a label 1, 0 or -1, found {shown(label, quoted=True)}")
        row = [known.get(name, -1) for known, name in zip(ids, names)]
        if -1 in row:
            unknown |= {name: None for name, i in zip(names, row) if i < 0}
            left += 1
            continue
        rows.append(row)
        labels.append(LABELS[label])
    if unknown:
        some = ", ".join([*(shown(name, quoted=True) for name in list(unknown)[:3]), *["..."] * (len(unknown) > 3)])
        what = f"{path}: the run does not know {counted(len(unknown), 'name')} ({some})"
        if not skip_unknown:
            raise CardkgeError(f"{what}; --skip-unknown leaves out their triples")
        warn(f"{what}: left out {left} of {counted(left + len(rows), 'triple')}")
    if not rows:
        raise CardkgeError(f"{path}: no triples are left; a line is {FORM}")
    return np.array(rows, np.int32), np.array(labels)


# --- features


class Facts:
    """Distinct facts (n, 3) by head, and the neighbours of a head h: (q, e) for a fact (h, q, e), and (q, s, e) for
    facts (h, q, x) and (x, s, e) of an x with at most HUB facts; each an int64."""

    def __init__(self, triples, n_entities, n_relations):
        self.n, self.r = n_entities, n_relations
        self.triples = triples[np.argsort(triples[:, 0], kind="stable")]
        self.limits = np.searchsorted(self.triples[:, 0], np.arange(n_entities + 1))
        self.degree = np.diff(self.limits)
        further = self.degree[self.triples[:, 2]]
        reach = np.bincount(self.triples[:, 0], 1 + np.where(further <= HUB, further, 0), n_entities)
        self.reach = reach.astype(np.int64)  # how many neighbours each entity has

    def parts(self, heads):
        """The places in heads (n,), in order, in parts of about NEIGHBOURS neighbours each."""
        total = np.cumsum(self.reach[heads])
        ends = np.searchsorted(total, np.arange(NEIGHBOURS, total.max(initial=0), NEIGHBOURS))
        return np.split(np.arange(len(heads)), ends)

    def neighbours(self, heads):
        """(neighbours (m,), place in heads (n,) of each (m,))."""
        places, which = spread(self.limits[heads], self.degree[heads])
        _, q, x = self.triples[places].T.astype(np.int64)
        small = np.flatnonzero(self.degree[x] <= HUB)
        further, via = spread(self.limits[x[small]], self.degree[x[small]])
        _, s, e = self.triples[further].T.astype(np.int64)
        via = small[via]
        paths = ((1 + q[via]) * self.r + s) * self.n + e
        return np.concatenate((q * self.n + x, paths)), np.concatenate((which, which[via]))

    def lifts(self, triples):
        """How much likelier the neighbours f of h make t as a tail of r: the sum, the mean, the largest and the
        smallest of log P(t | r, f) / P(t | r), (n, 4); zeros where h has no neighbour. The chances are shares of the
        facts of r; a fact counts as often as its head has f, also through its own tail."""
        found = np.zeros((len(triples), 4))
        for r in np.unique(triples[:, 1]):
            chosen = np.flatnonzero(triples[:, 1] == r)
            for part in self.parts(triples[chosen, 0]):
                found[chosen[part]] = self._lifts_of(r, *triples[chosen[part]][:, ::2].T.astype(np.int64))
        return found

    def _seen_with(self, r, facts, names):
        """For facts (m, 3) of r: (keys, counts). A key is the place of a neighbour in names (sorted) times N, plus the
        tail; keys are distinct and sorted, counts say how often each occurs."""
        keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for part in self.parts(facts[:, 0]):
            seen, fact = self.neighbours(facts[part, 0])
            tail = facts[part[fact], 2].astype(np.int64)
            place = np.minimum(np.searchsorted(names, seen), max(len(names) - 1, 0))
            kept = seen != r * self.n + tail  # a fact is no neighbour of itself
            kept &= names[place] == seen if len(names) else False
            for found, of in zip((keys, counts), np.unique(place[kept] * self.n + tail[kept], return_counts=True)):
                found.append(of)
        together, which = np.unique(np.concatenate(keys), return_inverse=True)
        return together, np.bincount(which, np.concatenate(counts), len(together))

    def _lifts_of(self, r, heads, tails):
        of_heads, which = self.neighbours(heads)
        names, of_heads = np.unique(of_heads, return_inverse=True)
        facts = self.triples[self.triples[:, 1] == r]
        together, counts = self._seen_with(r, facts, names)
        alone = np.bincount(together // self.n, counts, len(names))
        share = (np.bincount(facts[:, 2], minlength=self.n)[tails[which]] + 0.5) / (len(facts) + 1)
        pairs = of_heads * self.n + tails[which]
        at = np.minimum(np.searchsorted(together, pairs), max(len(together) - 1, 0))
        both = np.where(together[at] == pairs, counts[at], 0) if len(together) else np.zeros(len(pairs))
        lift = np.log((both / share + SMOOTHING) / (alone[of_heads] + SMOOTHING))
        total, number = np.bincount(which, lift, len(heads)), np.bincount(which, minlength=len(heads))
        most, least = np.full(len(heads), -np.inf), np.full(len(heads), np.inf)
        np.maximum.at(most, which, lift)
        np.minimum.at(least, which, lift)
        rows = np.column_stack((total, total / np.maximum(number, 1), most, least))
        return np.where(number[:, None] > 0, rows, 0.0)


def scores_of(model, r, heads, tails, open_side):
    """Scores (heads, tails) of all heads with all tails of r, answers to (h, r, ?) (open_side 1) or (?, r, t) (0)."""
    if model.reciprocal and not open_side:
        return scores_of(model, r + model.n_relations, tails, heads, 1).T
    entity = model.params["entity"]
    h, q, t = model.encode(entity[heads], model.params["relation"][[r]], entity[tails])
    if open_side:
        return model.match(model.query_tails(h, q), t)
    return model.match(model.query_heads(q, t), h).T


def softmax_scores(model, facts, triples, open_side):
    """(score, log of the sum of exp(score) over the candidates), (n, 2) float64: candidates are the entities on the
    open side (1: tails, 0: heads) of r in the facts, and the answer itself, without the other known answers."""
    found = np.empty((len(triples), 2))
    column = 2 * open_side
    for r in np.unique(triples[:, 1]):
        chosen = np.flatnonzero(triples[:, 1] == r)
        own = facts.triples[facts.triples[:, 1] == r]
        candidates = np.union1d(own[:, column], triples[chosen][:, column])
        foreign = ~np.isin(candidates, own[:, column])
        given, which = np.unique(triples[chosen][:, 2 - column], return_inverse=True)
        size = max(1, 2**19 // len(candidates))
        for first in range(0, len(given), size):
            part = given[first : first + size]
            pair = (part, candidates) if open_side else (candidates, part)
            scores = scores_of(model, r, *pair, open_side).astype(np.float64)
            scores = scores if open_side else scores.T
            rows = np.flatnonzero((which >= first) & (which < first + size))
            at = which[rows] - first, np.searchsorted(candidates, triples[chosen[rows], column])
            answer = scores[at]
            scores[:, foreign] = -np.inf
            known = own[np.isin(own[:, 2 - column], part)]
            scores[np.searchsorted(part, known[:, 2 - column]), np.searchsorted(candidates, known[:, column])] = -np.inf
            left = scores.max(1) > -np.inf
            sums = np.full(len(part), -np.inf)
            sums[left] = log_sum_exp(scores[left])
            total = np.where(foreign[at[1]], np.logaddexp(sums[at[0]], answer), sums[at[0]])
            found[chosen[rows]] = np.column_stack((answer, total))
    return found


@dataclass(frozen=True, eq=False)
class Features:
    """For triples (n, 3): their relations, scores and the log frequencies of their tails under r, (n,) each, and
    `columns` (n, d): log softmax over tails, log sum (their sum is the score), log softmax over heads, log frequency,
    one and two known tails of (h, r), log of the facts of h, whether a bound of (h, r) or (r, t) is full, and the four
    of `Facts.lifts`."""

    relations: np.ndarray
    score: np.ndarray
    frequency: np.ndarray
    columns: np.ndarray


def without(train, triples, n_entities, n_relations):
    """Train (m, 3) without the triples (n, 3) to be labelled."""
    keys = (triple_keys(*np.asarray(each).T, n_entities, n_relations) for each in (train, triples))
    return np.asarray(train)[~np.isin(*keys)]


def full_bounds(bounds, answers, triples):
    """(n,) bool: (h, r) or (r, t) of triples (n, 3) already has as many answers as its bound allows. bounds: Bounds."""
    heads, relations, tails = triples.T
    full = room_left(bounds.of(relations, heads), answers.count(heads, relations)) == 0
    return full | (room_left(bounds.of(relations, tails, inverse=True), answers.count_heads(relations, tails)) == 0)


def features(model, bounds, train, triples):
    """The Features of triples (n, 3) to be labelled, given train (m, 3) and bounds: Bounds, (R, 2) or None."""
    n, r = model.n_entities, model.n_relations
    facts = Facts(without(train, triples, n, r), n, r)
    answers, (heads, relations, tails) = KnownTails(facts.triples, n, r), triples.T
    known, frequency = answers.count(heads, relations), np.log(answers.count_heads(relations, tails) + 0.5)
    score, total = softmax_scores(model, facts, triples, 1).T
    head_score, head_total = softmax_scores(model, facts, triples, 0).T
    columns = (
        score - total, total, head_score - head_total, frequency, known > 0, known > 1, np.log1p(facts.degree[heads]),
        full_bounds(as_bounds(bounds, r), answers, triples), facts.lifts(triples),
    )  # fmt: skip
    return Features(relations, score, frequency, np.column_stack(columns))


# --- the model of labels


def label_loss(x, labels, centre, precision, slopes):
    """The logistic loss of x (n, d) @ slopes with labels (n,) bool, plus the prior 1/2 precision |slopes - centre|^2:
    (value, gradient (d,), curvature (d, d))."""
    scores, away = x @ slopes, slopes - centre
    loss, d_scores = logistic_loss(scores, np.where(labels, 1, -1))
    curvature = (x.T * (probability(scores) * probability(-scores))) @ x + precision * np.eye(len(slopes))
    return loss + precision / 2 * away @ away, d_scores @ x + precision * away, curvature


def fit_labels(columns, relations, labels, n_relations, precision):
    """Logistic regression for each relation: a function (columns (n, d), relations (n,)) -> p (n,).

    Columns are standardised; slopes are fitted to all relations together, then to each under a Gaussian prior of that
    precision around the common ones. CardkgeError where a column is not finite."""
    if not np.isfinite(columns).all():
        raise CardkgeError("classify: a score is not finite; train again, say with a smaller learning rate")
    centre, scale = columns.mean(0), np.maximum(columns.std(0), 1e-9)

    def design(columns):
        return np.column_stack(((columns - centre) / scale, np.ones(len(columns))))

    x = design(columns)
    lowest = functools.partial(minimise, tolerance=1e-12)
    common = lowest(functools.partial(label_loss, x, labels, 0.0, 1e-2), np.zeros(x.shape[1]))
    slopes = np.tile(common, (n_relations, 1))
    for r in np.unique(relations):
        part = relations == r
        slopes[r] = lowest(functools.partial(label_loss, x[part], labels[part], common, precision), common)
    return lambda columns, relations: probability((design(columns) * slopes[relations]).sum(1))


def cross_validated(columns, triples, labels, n_relations, precision):
    """The log loss of `fit_labels` on labels that it has not seen: FOLDS parts, all triples of a head in one."""
    fold = np.random.default_rng(0).permutation(triples[:, 0].max() + 1)[triples[:, 0]] % FOLDS
    loss = 0.0
    for k in np.unique(fold):
        seen, part = fold != k, fold == k
        if seen.any():
            fitted = fit_labels(columns[seen], triples[seen, 1], labels[seen], n_relations, precision)
            p = fitted(columns[part], triples[part, 1])
            loss -= np.log(np.maximum(np.where(labels[part], p, 1 - p), 1e-15)).sum()
    return loss / len(labels)


def best_thresholds(scores, relations, labels, n_relations):
    """(R,): for each relation the threshold that labels most triples rightly, a score above it meaning true; the lowest
    of equals; the common one for a relation without labels (Socher et al. 2013)."""

    def best(scores, labels):
        values, place = np.unique(scores, return_inverse=True)
        steps = np.concatenate(([-np.inf], (values[1:] + values[:-1]) / 2, [np.inf]))  # also below all, above all
        true = np.bincount(place, labels, len(values))
        false = np.bincount(place, ~labels, len(values))
        right = true.sum() - np.append(0, np.cumsum(true)) + np.append(0, np.cumsum(false))
        return steps[np.argmax(right)]

    found = np.full(n_relations, best(scores, labels))
    for r in np.unique(relations):
        found[r] = best(scores[relations == r], labels[relations == r])
    return found


# --- classify

METRICS = "accuracy", "f1", "auc", "brier"
BASELINE = "log frequency of the tail"


def by_labels(of, valid, valid_triples, valid_labels, n_relations):
    """Learns from valid's labels: ({method: p (n,) of the triples to be labelled}, a line on the choice made).

    of, valid: Features. The model of labels has the name None. A threshold gives p = 1 above it, else 0."""
    fit = functools.partial(fit_labels, relations=valid.relations, labels=valid_labels, n_relations=n_relations)
    labelled = valid.columns, valid_triples, valid_labels, n_relations
    losses = {precision: cross_validated(*labelled, precision) for precision in PRECISIONS}
    precision = min(losses, key=losses.get)
    p = {None: fit(valid.columns, precision=precision)(of.columns, of.relations)}
    for name, column in ((BASELINE, "frequency"), ("Platt", "score")):
        mine, its = (getattr(each, column)[:, None] for each in (of, valid))
        p[name] = fit(its, precision=0.1)(mine, of.relations)
    thresholds = best_thresholds(valid.score, valid.relations, valid_labels, n_relations)
    p["threshold"] = (of.score > thresholds[of.relations]).astype(np.float64)
    return p, f"prior of a relation: precision {precision:g}, log loss {losses[precision]:.4f} cross-validated in valid"


def by_calibration(run, folder, dataset, triples, threads):
    """{name: p (n,)} without labels: the run's calibration, given its bounds and the other triples of train; the
    baseline is the chance that t was drawn by frequency rather than evenly."""
    n, r = len(run.entities), len(run.relations)
    known = KnownTails(dataset.train, n, r).without(KnownTails(triples, n, r))
    calibration = calibrated_run(run, folder).knowing("train")
    excluded = KnownAndLoops(known, without_loops(dataset.train, r))
    answerable = KnownTails(triples[~excluded.has(*triples.T)], n, r)
    decoder = Decoder(run.best_model(), calibration, run_bounds(run), known, excluded, answerable)
    pairs, place = np.unique(triples[:, 1].astype(np.int64) * n + triples[:, 0], return_inverse=True)
    found = {0: (np.full(1, -1), np.zeros(1))}  # a loop is not an answer

    def consume(first, last, decoded):
        here = decoder.wanted.has((pairs % n)[first + decoded.row], (pairs // n)[first + decoded.row], decoded.ids)
        found[first + 1] = (first + decoded.row[here]) * n + decoded.ids[here], decoded.p[here]

    with counter("looked at: (h, r)") as progress:
        decoder.run((pairs % n).astype(np.int32), (pairs // n).astype(np.int32), threads, consume, progress)
    keys, p = Tally.joined(found)  # ascending
    wanted = place * n + triples[:, 2]
    at = np.searchsorted(keys, wanted, "right") - 1
    p = np.where(keys[at] == wanted, p[at], 0.0)
    facts = known.keys // n // n
    counts = known.count_heads(triples[:, 1], triples[:, 2])
    tails = np.unique(facts * n + known.keys % n) // n
    mean = np.bincount(facts, minlength=r) / np.maximum(np.bincount(tails, minlength=r), 1)
    return {None: p, BASELINE: counts / np.maximum(counts + mean[triples[:, 1]], 1e-300)}


def hard_false(triples, labels, counts):
    """(n,) bool: false triples whose tail is as frequent under r, counts (n,), as the median of r's true ones."""
    hard = np.zeros(len(labels), bool)
    for r in np.unique(triples[labels, 1]):
        part = triples[:, 1] == r
        hard[part & ~labels] = counts[part & ~labels] >= np.median(counts[part & labels])
    return hard


def classification(run, folder, dataset, path, valid, skip_unknown, threads):
    """(report, note): the report on the labelled triples in a file, a dict for JSON, and how the model of labels was
    chosen. valid: a file to learn labels from; None: the run's calibration decides."""
    names = run.entities, run.relations
    triples, labels = read_labelled(path, *names, skip_unknown)
    note, r = "by the run's calibration; true is what has p > 0.5", len(run.relations)
    if valid is None:
        p = by_calibration(run, folder, dataset, triples, threads)
    else:
        valid_triples, valid_labels = read_labelled(valid, *names, skip_unknown)
        if valid_labels.all() or not valid_labels.any():
            found = f"all {len(valid_labels)} triples are {'true' if valid_labels[0] else 'false'}"
            raise CardkgeError(f"{valid}: {found}; labels are learnt from true and false ones")
        keys = [triple_keys(*each.T, len(run.entities), r) for each in (triples, valid_triples)]
        if seen := int(np.isin(*keys).sum()):
            warn(f"{path}: {seen:,} of {len(triples):,} triples stand in {valid} too, where labels are learnt")
        both = [features(run.best_model(), run_bounds(run), dataset.train, each) for each in (triples, valid_triples)]
        p, note = by_labels(*both, valid_triples, valid_labels, r)
    return report_of(p, triples, labels, run.relations, dataset.train, len(run.entities)), note


def report_of(p, triples, labels, relations, train, n_entities):
    """The dict for JSON: the metrics of p[None] over all triples, their number, how many stand in train, and the same
    for the other methods under `baselines` and for the parts under `relations`."""

    def part_of(chosen):
        found = {name: label_metrics(each[chosen], labels[chosen]) for name, each in p.items()}
        if "threshold" in found:
            found["threshold"]["brier"] = None
        return found.pop(None) | {"triples": int(np.count_nonzero(chosen)), "baselines": found}

    everything = np.ones(len(labels), bool)
    known = KnownTails(train, n_entities, len(relations))
    in_train = np.isin(triple_keys(*triples.T, n_entities, len(relations)), known.keys)
    hard = hard_false(triples, labels, known.count_heads(triples[:, 1], triples[:, 2]))
    return part_of(everything) | {
        "in_train": {"true": int(np.sum(in_train & labels)), "false": int(np.sum(in_train & ~labels))},
        "hard_false": {
            "triples": int(hard.sum()),
            "refused": {name or "ours": float((each[hard] <= 0.5).mean()) for name, each in p.items() if hard.any()},
        },
        "relations": {relations[r]: part_of(triples[:, 1] == r) for r in np.unique(triples[:, 1]).tolist()},
    }


def show_classification(report, note):
    """The metrics as a table, a line for each relation, beside those of the frequency of the tail alone."""
    parts = [("(all)", report), *report["relations"].items()]
    rows = []
    for name, part in parts:
        cells = [cell for m in METRICS for cell in (figure(part, m), figure(part["baselines"][BASELINE], m))]
        rows.append([name, f"{part['triples']:,}", *cells])
    table(rows, ["relation", "triples", *(cell for m in METRICS for cell in (m, f"{m}, f."))], "l")
    say(f"\nf.: by the frequency alone, how often the relation has the tail in train; {note}")
    for name, found in report["baselines"].items():
        if name != BASELINE:
            say(f"{name} per relation: " + ", ".join(f"{m} {figure(found, m)}" for m in METRICS))
    hard, known = report["hard_false"], report["in_train"]
    if hard["triples"]:
        refused = ", ".join(f"{name} {100 * x:.1f} %" for name, x in hard["refused"].items())
        what = counted(hard["triples"], "false triple has", "false triples have")
        say(f"{what} a tail as frequent as those of half of the true ones; taken for false: {refused}")
    if known["true"] or known["false"]:
        say(f"{known['true']:,} true and {known['false']:,} false ones stand in train; they are measured as if unknown")


def figure(found, name):
    """A metric as text: accuracy, F1 and AUC in percent."""
    value = found[name]
    return "-" if value is None else f"{value:.4f}" if name == "brier" else f"{100 * value:.2f}"


def classify_command(folder, path, valid, skip_unknown, data, json_file, threads):
    """`classify`: a table, and JSON on request."""
    run, dataset = open_to_measure(folder, data)
    report, note = classification(run, folder, dataset, path, valid, skip_unknown, threads)
    if write_report(json_file, report):
        show_classification(report, note)
