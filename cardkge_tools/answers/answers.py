"""Answers: the completions of a query, which are known, and how many are expected. Each query is scored once."""

import copy
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import kernels
from cardkge import CardkgeError, probability
from cardkge_tools import SPLITS
from cardkge_tools.answers.calibration import CountPrior
from cardkge_tools.answers.decoding import WHOLE, KnownTails, acceptable, block_of, complete, scope_pairs
from cardkge_tools.answers.facts import bounds_in_use, fact_decoder, found_bounds
from cardkge_tools.answers.odds import GUESS, room_left
from cardkge_tools.answers.opening import aligned_data
from cardkge_tools.answers.runs import load_run
from cardkge_tools.definitions.softmax import without_loops
from cardkge_tools.engine.batches import Threads
from cardkge_tools.engine.ranking import Queries, exact_scores, exact_sums, scored_blocks, sums_of_sigma
from cardkge_tools.graph.bound_files import find_bounds
from cardkge_tools.shell.terminal import counter, warn

CHUNK = 64  # heads of (?, r, t) decoded at a time, best score first, until enough completions are read


class Count(NamedTuple):
    """How many tails a head has (or heads a tail): the known ones, the expected number with these (None where the run
    is not calibrated), and the bound (lower, upper); said: what the bound asks for beyond that; whether the data
    contradicts the bound, and whether new names are guesses."""

    known: int
    expected: float | None
    bound: tuple[float, float]
    said: str = ""
    contradicted: bool = False
    guesses: bool = False


class Completion(NamedTuple):
    """One completion: the entity, the split that holds its triple (None: it is new), its score and probability, and
    whether it is accepted (None where the run is not calibrated). A head in (?, r, t) also has the Count of its tails
    and, on request, its X_hr."""

    entity: int
    known_in: str | None
    score: float
    probability: float
    accepted: bool | None
    count: Count | None = None
    x: float | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """All completions of one query, best score first. count: the Count of its head's tails, or of its tail's heads
    where bounds of the inverse condition them (else None); x: X_hr of its head."""

    completions: Iterable[Completion]
    count: Count | None = None
    x: float | None = None


@dataclass(frozen=True)
class TripleAnswer:
    """The answer for one triple: its Completion as a tail, its ranks {"raw", "filtered": {"head", "tail"}}, X_hr and
    X_rt, and the bounds (lower, upper) of both."""

    completion: Completion
    ranks: dict
    sums: tuple[float, float]
    bounds: tuple[tuple[float, float], tuple[float, float]]


class Answers:
    """The completions of a run's queries.

    Where the run is calibrated and its data can be read, p is calibrated and conditioned on bounds (`bounds_in_use`).
    Otherwise p is sigma(score): the paper's losses give it that meaning, softmax does not, and a warning says so.
    CardkgeError where the data is absent but needed (`needed`), or absent and the run is calibrated under softmax."""

    def __init__(self, folder, data=None, needed=False, bounds=None):
        self.run = run = load_run(folder)
        self.model, self.bounds, self.source = run.best_model(), run.bounds, ""
        self.softmax = run.settings.loss == "softmax"
        self.dataset, self.loopless, self.decoder = None, np.zeros(len(run.relations), bool), None
        self.soft = ""  # a remark for the user where mined bounds are no limits
        self.kept = {}  # relation -> the new facts that `complete` finds in it
        try:
            self.dataset = aligned_data(run, folder, data, download=False)
        except CardkgeError as error:
            if needed or data or bounds:
                raise
            if self.softmax and run.calibration is not None:
                raise CardkgeError(
                    f"{error}; the probabilities of {folder} need the known triples, and sigma(score)"
                    " means nothing under softmax"
                ) from error
            warn(f"known triples are not marked, and the probability is sigma(score): {error}")
        if self.softmax and run.calibration is None:
            warn(f"{folder} is not calibrated: the probability is sigma(score), which means nothing under softmax")
        if self.dataset is None:
            return
        self.splits = [KnownTails(getattr(self.dataset, split), *self._sizes()) for split in SPLITS]
        used = run.bounds
        if run.calibration is not None:
            used = bounds_in_use(run, self.dataset, folder, bounds)
            self.decoder = fact_decoder(run, self.dataset, folder, "all", used)  # what `complete` uses
            self.exact = copy.copy(self.decoder)
            self.exact.floor = 1e-300  # so that even improbable tails are shown
        elif bounds is not None:
            used = found_bounds(bounds, self.dataset)
        self.bounds = used
        if isinstance(used, CountPrior):
            self.soft = "; given the counts of train and valid, for which it is no limit"
        if not used.any():  # a CountPrior forbids no number
            mined = run.settings.bounds == "mined"
            self.bounds = run.bounds if mined else find_bounds("mined", self.dataset)[0]
            self.source = " (mined)"
        if run.settings.no_loops:
            self.loopless = without_loops(self.dataset.train, len(run.relations))

    @property
    def conditioned(self):
        """Whether bounds or prior counts change the probabilities."""
        return self.calibrated and (bool(self.soft) or self.decoder.bounds.any())

    @property
    def calibrated(self):
        """Whether probabilities come from the calibration."""
        return self.decoder is not None

    def _sizes(self):
        return len(self.run.entities), len(self.run.relations)

    def limits(self, relation, heads):
        """(n, 2): the bounds of these heads, from the run or mined."""
        return self.bounds.of(relation, heads)

    def known(self, relation, head=None, tail=None):
        """The known completions of a query: {id: the first split that holds the triple}."""
        found = {}
        for split, index in zip(SPLITS, self.splits if self.dataset is not None else ()):
            _, ids = index.of([head], [relation]) if tail is None else index.heads_of([relation], [tail])
            found = dict.fromkeys(ids.tolist(), split) | found
        return found

    # --- (h, r, ?)

    def tails(self, relation, head):
        """The Answer to (head, relation, ?)."""
        scores, p, accepted, count = self._of_head(relation, head)
        known, x = self.known(relation, head), float(sums_of_sigma(scores[None])[0])
        order = self._order(relation, head, scores, known)
        return Answer((_completion(e, known, scores, p, accepted) for e in order.tolist()), count, x)

    def _of_head(self, relation, head):
        """Scores, p, and (None where not calibrated) whether accepted, (N,) each, of all tails; the Count of them."""
        scores, known = exact_scores(self.model, relation, head), list(self.known(relation, head))
        bound = tuple(self.limits(relation, [head])[0].tolist())
        if not self.calibrated:
            return scores, probability(scores), None, Count(len(known), None, bound)
        heads, relations = np.array([head]), np.array([relation])
        decoded = self.exact.decode(heads, relations, scores[None])
        p, accepted = np.zeros(len(scores)), np.zeros(len(scores), bool)
        p[decoded.ids] = decoded.p
        p[known], accepted[known] = 1, True
        places = acceptable(decoded, room_left(self.decoder.bounds.of(relations, heads), decoded.known), 0.5)
        accepted[self._with_room(relation, head, decoded.ids[places])] = True
        said = ""
        asked = self.decoder.bounds.of(relations, heads)[0, 0] > len(known)  # `bound` may be mined, and only shown
        if asked and self.decoder.calibration.unseen_of(relations)[0] > 0:
            said = "; it counts tails that the graph lacks, so it may be more than the graph can answer"
        if decoded.guesses[0]:
            said += f"; by itself the model has a chance below {GUESS:g} for so many: new names are guesses"
        of = bool(decoded.contradicted[0]), bool(decoded.guesses[0])
        return scores, p, accepted, Count(len(known), float(decoded.expected()[0]), bound, said, *of)

    def _order(self, relation, given, scores, known):
        """Entities (N,), best score first, equals by id; without the loop where the run was trained without loops."""
        order = np.argsort(-scores, kind="stable")
        return order[order != given] if self.loopless[relation] and given not in known else order

    def _with_room(self, relation, head, tails):
        """The tails (n,) that `complete` keeps, of new ones for which (h, r) has room: those where (r, t) has room
        beside better facts. Where (r, t) has a bound, this needs the answers of all heads in scope."""
        if not len(tails) or not self.decoder.full.inverse[relation]:
            return tails
        room = self.decoder.full.room(np.full(len(tails), relation), tails)
        heads, facts = self._facts_of(relation)
        if head in heads:
            return tails[np.isin(tails, facts[facts[:, 0] == head, 2])]
        return tails[(facts[:, 2] == tails[:, None]).sum(1) < room]  # beside the facts of heads in scope

    def _facts_of(self, relation):
        """(heads in scope, new facts (m, 3)) of a relation, as `complete` finds them, kept for further queries."""
        if relation not in self.kept:
            heads, relations = scope_pairs(self.dataset.train, *self._sizes(), [relation], self.run.types)
            self.kept[relation] = heads, complete(self.decoder, heads, relations)[0]
        return self.kept[relation]

    # --- (?, r, t)

    def heads(self, relation, tail, with_x=False):
        """The Answer to (?, relation, tail), with the Count of each head's tails where the run is calibrated, and with
        its X_hr on request (with_x).

        Both need the N scores of the head's own query; they are computed for CHUNK heads at a time, until enough
        completions are read. Where bounds of the inverse condition the heads, all N heads are needed at once: N x N
        scores, computed in blocks by all threads, with a counter."""
        scores, known = exact_scores(self.model, relation, tail=tail), self.known(relation, tail=tail)
        order = self._order(relation, tail, scores, known)
        bound, room = (0, math.inf), math.inf
        if self.calibrated:
            bound = tuple(self.decoder.bounds.of([relation], [tail], inverse=True)[0].tolist())
            room = bound[1] - len(known)
        if bound != (0, math.inf) and room >= 1:
            with counter("decoded: heads") as progress:
                completions = self._of_heads(relation, tail, order, scores, known, with_x, progress)
            return self._conditioned(relation, completions, Count(len(known), None, bound))
        parts = (order[start : start + CHUNK] for start in range(0, len(order), CHUNK))
        completions = (self._of_heads(relation, tail, part, scores, known, with_x) for part in parts)
        count = Count(len(known), float(len(known)), bound, contradicted=len(known) > bound[1])  # there is no room
        return Answer(itertools.chain.from_iterable(completions), None if bound == (0, math.inf) else count)

    def _of_heads(self, relation, tail, heads, scores, known, with_x, progress=None):
        """The Completions of (?, relation, tail) by these heads (n,), a list; each p is conditioned on the bounds of
        its (h, r). scores (N,) and known are the query's."""
        n, relations = len(heads), np.full(len(heads), relation)
        p, sums = probability(scores[heads]).astype(float), np.empty(n)
        counts, expected, (contradicted, guesses) = np.zeros(n, int), np.zeros(n), np.zeros((2, n), bool)
        accepted, limits = np.array([head in known for head in heads.tolist()]), self.limits(relation, heads)
        if self.calibrated:
            decoder, new = copy.copy(self.decoder), heads[~accepted]
            triples = np.column_stack((new, relations[: len(new)], np.full(len(new), tail)))
            decoder.wanted = KnownTails(triples[~decoder.excluded.has(*triples.T)], *self._sizes())

        def each(first, last, rows):
            part = slice(first, last)
            if with_x:
                sums[part] = sums_of_sigma(rows)
            if self.calibrated:
                decoded = decoder.decode(heads[part], relations[part], rows)
                p[part] = np.where(accepted[part], 1, decoded.of_tail(tail))
                counts[part], expected[part] = decoded.known, decoded.expected()
                contradicted[part], guesses[part] = decoded.contradicted, decoded.guesses
                room = room_left(decoder.bounds.of(relations[part], heads[part]), decoded.known)
                places = acceptable(decoded, room, 0.5)
                accepted[first + decoded.row[places][decoded.ids[places] == tail]] = True

        if self.calibrated or with_x:
            with Threads(None) as pool:
                size = block_of(self.model.n_entities, WHOLE)
                scored_blocks(self.model, Queries(heads, relations), pool, each, size, progress)
        columns = (
            each.tolist() for each in (heads, p, accepted, counts, expected, limits, contradicted, guesses, sums)
        )
        return [
            Completion(
                head, known.get(head), float(scores[head]), its_p, yes if self.calibrated else None,
                Count(count, mean if self.calibrated else None, tuple(bound), "", *of), x if with_x else None,
            )
            for head, its_p, yes, count, mean, bound, *of, x in zip(*columns, strict=True)
        ]  # fmt: skip

    def _conditioned(self, relation, completions, heads):
        """The Answer with these Completions of all heads, whose p are conditioned on the bounds of their (h, r),
        conditioned on the bounds of (r, t) as well; heads: its Count so far. Among the heads whose (h, r) has room, the
        best are accepted while (r, t) has room, those in scope first, as in `complete`. Bounds that cannot hold leave
        no new head."""
        lower, upper = heads.bound
        new = [each for each in completions if each.known_in is None and each.probability > 0]
        least, most = max(math.ceil(lower) - heads.known, 0), upper - heads.known
        p = np.zeros(len(new))
        if possible := least <= min(most, len(new)):
            given = np.array([each.probability for each in new])
            with np.errstate(divide="ignore"):
                odds = np.clip(np.log(given) - np.log1p(-given), -1e6, 1e6)
            ends = np.array([[least], [most]], float)
            kernels.condition_sets(0, 1, np.array([0, len(new)]), odds, *ends, np.ones((1, 1)), np.zeros(1), p)
        in_scope = set(scope_pairs(self.dataset.train, *self._sizes(), [relation], self.run.types)[0].tolist())
        best = sorted(new, key=lambda each: (each.entity not in in_scope, -each.probability, each.entity))
        best = [each.entity for each in best if each.accepted and possible]
        kept, given = set(best[: int(min(most, len(best)))]), dict(zip((each.entity for each in new), p.tolist()))
        completions = [
            each
            if each.known_in
            else each._replace(probability=given.get(each.entity, 0.0), accepted=each.entity in kept)
            for each in completions
        ]
        return Answer(completions, heads._replace(expected=heads.known + float(p.sum()), contradicted=not possible))

    # --- (h, r, t)

    def triple(self, head, relation, tail):
        """The TripleAnswer of one triple; it needs the data. CardkgeError where a score is NaN."""
        of_tails, p, accepted, count = self._of_head(relation, head)
        of_heads, known = exact_scores(self.model, relation, tail=tail), self.known(relation, head)
        if np.isnan(of_tails).any() or np.isnan(of_heads).any():
            raise CardkgeError("a score is NaN: the parameters are too large for their dtype; no rank can be taken")
        completion = _completion(tail, known, of_tails, p, accepted)
        if head == tail and self.loopless[relation] and tail not in known:
            completion = completion._replace(probability=0.0)  # no answer
        others = {"raw": ((), ()), "filtered": (self.known(relation, tail=tail), known)}
        ranks = {
            setting: {"head": rank(of_heads, head, heads), "tail": rank(of_tails, tail, tails)}
            for setting, (heads, tails) in others.items()
        }
        x = sums_of_sigma(of_heads[None])[0]
        if self.model.reciprocal:  # ranks are by (t, r + R, ?), X_rt as ever by (h, r, t)
            with Threads(1) as threads:
                x = exact_sums(self.model, True, np.array([relation]), np.array([tail]), threads)[0]
        bounds = count.bound, tuple(self.bounds.of(relation, [tail], inverse=True)[0].tolist())
        sums = float(sums_of_sigma(of_tails[None])[0]), float(x)
        return TripleAnswer(completion, ranks, sums, bounds)


def _completion(entity, known, scores, p, accepted):
    """The Completion of one entity, of arrays (N,)."""
    yes = None if accepted is None else bool(accepted[entity])
    return Completion(entity, known.get(entity), float(scores[entity]), float(p[entity]), yes)


def rank(scores, answer, known):
    """The rank of an answer among scores (N,), of ties the mean, other known ones left out, as of `rank_triples`."""
    others = np.ones(len(scores), bool)
    others[[*known, answer]] = False
    right = scores[answer]
    return 1 + np.sum(scores[others] > right) + np.sum(scores[others] == right) / 2
