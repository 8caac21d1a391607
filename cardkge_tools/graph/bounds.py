"""Bounds: how many tails a head may have in a relation r, or how many heads a tail may have, written ^r.

A bound holds for every *subject* (a head; of ^r a tail), for the members of one class, or for one subject alone. Of the
bounds that apply to a subject the tightest holds. A file of bounds has the lines

    relation<TAB>lower<TAB>upper[<TAB>class[<TAB>entity]]

with `inf` for no upper bound, and an empty class before an entity. `bound_files` reads RDF as well."""

import collections
import functools
import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cardkge import Bounds, CardkgeError, is_bounded
from cardkge_tools.graph import rdf
from cardkge_tools.graph.spelling import Known
from cardkge_tools.shell.files import line_error, read_fields

NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|inf", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bound:
    """A subject has at least `lower` and at most `upper` tails in a relation (heads, if inverse).

    kind, subject: the name of the class or of the one entity for which it holds; both None: it holds for every subject.
    where: file and line, or file and shape."""

    relation: str
    lower: float
    upper: float
    inverse: bool = False
    kind: str | None = None
    where: str = ""
    subject: str | None = None

    @property
    def name(self):
        """The relation as a file writes it."""
        return f"^{self.relation}" if self.inverse else self.relation

    @property
    def key(self):
        return self.relation, self.inverse, self.kind, self.subject

    def __str__(self):
        of = "".join(f" of {name}" for name in (self.kind, self.subject) if name is not None)
        return f"{self.name}{of} {self.lower:.15g} to {self.upper:.15g}" + f" ({self.where})" * bool(self.where)


# --- classes of entities


class Types:
    """The classes of a graph, and their members.

    classes: names. pairs: (n, 2) int64, ids of entities and classes, distinct, sorted. notes: warnings of the file."""

    def __init__(self, classes=(), pairs=(), notes=()):
        self.classes, self.notes = list(classes), list(notes)
        pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
        self._keys = np.unique(pairs[:, 0] * max(len(self.classes), 1) + pairs[:, 1])
        self.ids = {name: i for i, name in enumerate(self.classes)}

    @property
    def pairs(self):
        return np.stack(np.divmod(self._keys, max(len(self.classes), 1)), axis=1)

    def members(self, kind):
        """Entity ids of a class's members, by its name."""
        pairs = self.pairs
        return pairs[pairs[:, 1] == self.ids[kind], 0] if kind in self.ids else np.empty(0, np.int64)

    def has(self, entities, kind):
        """(n,) bool: whether each entity is a member of the class of that name."""
        entities = np.asarray(entities, np.int64)
        if kind not in self.ids or not len(self._keys):
            return np.zeros(entities.shape, bool)
        keys = entities * len(self.classes) + self.ids[kind]
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._keys[at] == keys


def read_types(path, entities):
    """The Types in a `types.tsv` (`entity<TAB>class` a line), for these names of entities; without a file, no classes.

    Lines about other entities are left out; a note counts them and shows the first."""
    if not os.path.isfile(path):
        return Types()
    ids, classes, pairs, unknown = {name: i for i, name in enumerate(entities)}, {}, [], []
    for at, fields in read_fields(path):
        if len(fields) != 2 or "" in fields:
            fault = f"expected an entity and its class with a tab between, found {fields!r:.80}"
            raise line_error(path, at, fields, fault)
        kind = classes.setdefault(fields[1], len(classes))
        if fields[0] in ids:
            pairs.append((ids[fields[0]], kind))
        else:
            unknown.append((fields[0], at))
    notes = []
    if unknown:
        lines = "1 line is" if len(unknown) == 1 else f"{len(unknown):,} lines are"
        first = f"{unknown[0][0]!a:.80} in line {unknown[0][1]}"
        notes = [f"{path}: {lines} about names that the graph does not have ({first}), and left out"]
    return Types(classes, pairs, notes)


def types_text(types, entities):
    """The text of a `types.tsv`, as `read_types` reads it."""
    return "".join(f"{entities[entity]}\t{types.classes[kind]}\n" for entity, kind in types.pairs.tolist())


# --- bounds of a graph


@dataclass(frozen=True)
class Vocabulary:
    """The names that bounds of a graph may use, and the prefixes of its IRIs."""

    entities: list
    relations: list
    types: Types = field(default_factory=Types)
    prefixes: rdf.Prefixes = field(default_factory=rdf.Prefixes)

    @classmethod
    def of(cls, dataset):
        """The names of a Dataset, with the `types.tsv` and `prefixes.tsv` of its folder."""
        if dataset.folder is None:
            return cls(dataset.entities, dataset.relations)
        folder = Path(dataset.folder)
        types = read_types(folder / "types.tsv", dataset.entities)
        return cls(dataset.entities, dataset.relations, types, rdf.read_prefixes(folder / "prefixes.tsv"))


class GraphBounds(Bounds):
    """All bounds of a graph: of every subject, of the members of classes, and of single subjects.

    bounds: a list of Bound. relations: the R names. types: Types of the entities. entities: their N names, which bounds
    of single subjects need. Where a subject's own bound contradicts the others, its own holds; `overruled` counts them.
    Raises CardkgeError, naming two bounds, where those of every subject and of classes leave an entity no whole number,
    where two are of the same relation and class, or where a subject has two that differ."""

    def __init__(self, bounds, relations, types=None, entities=None):
        bounds, self.relations, self.types = list(bounds), list(relations), types or Types()
        self.stated, self.entities = tuple(bound for bound in bounds if bound.subject is None), entities
        ids = {name: r for r, name in enumerate(self.relations)}
        tables, apply = np.tile([0.0, np.inf], (2, len(self.relations), 1)), collections.defaultdict(list)
        for bound in self.stated:
            apply[ids[bound.relation], bound.inverse].append(bound)
            if bound.kind is None:
                tables[int(bound.inverse), ids[bound.relation]] = bound.lower, bound.upper
        for several in apply.values():
            self._check(several)
        super().__init__(*tables)
        of_classes = {key: [b for b in several if b.kind is not None] for key, several in apply.items()}
        self._of_classes = {key: several for key, several in of_classes.items() if several}  # by relation, inverse
        self._take_own([bound for bound in bounds if bound.subject is not None], ids)

    @classmethod
    def named(cls, bounds, graph, where=""):
        """A plain Bounds, of every subject, with the names of a Vocabulary."""
        stated = [
            Bound(graph.relations[r], *bounds.tables[int(inverse), r].tolist(), inverse, None, where)
            for inverse in (False, True)
            for r in (np.flatnonzero(bounds.is_bounded(True)) if inverse else range(len(graph.relations)))
        ]
        return cls(stated, graph.relations, graph.types, graph.entities)

    def _take_own(self, bounds, ids):
        """Keep the bounds of single subjects as arrays sorted by direction, relation and subject: keys (n,), own (n, 2)
        and _found (n, 2), which are `own` joined with the bounds of every subject and of classes."""
        if bounds and self.entities is None:
            raise CardkgeError(f"bounds of single subjects need the names of the entities, found {bounds[0]}")
        place = {name: i for i, name in enumerate(self.entities)} if bounds else {}
        keys = [self._key(b.inverse, ids[b.relation], place[b.subject]) for b in bounds]
        keys, own = np.array(keys, np.int64), np.array([(b.lower, b.upper) for b in bounds], float).reshape(-1, 2)
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.diff(keys[order]) == 0)
        for i, j in zip(order[twice], order[twice + 1]):
            if (own[i] != own[j]).any():
                raise CardkgeError(f"twice the same relation and subject: {bounds[i]} and {bounds[j]}; keep one")
        order = np.delete(order, twice)
        self.keys, self.own = keys[order], own[order]
        self._found, wider = self.own.copy(), np.zeros_like(self.own)
        inverse, relations, subjects = self._of_keys()
        for side in (False, True):
            here = inverse == side
            wider[here] = self._of_all_and_classes(relations[here], subjects[here], side)
        tight = np.stack((np.maximum(self.own[:, 0], wider[:, 0]), np.minimum(self.own[:, 1], wider[:, 1])), 1)
        agree = np.ceil(tight[:, 0]) <= tight[:, 1]
        self._found[agree], self.overruled = tight[agree], int(np.count_nonzero(~agree))

    def _key(self, inverse, relations, subjects):
        return (inverse * len(self.relations) + relations) * len(self.entities or ()) + subjects

    def _of_keys(self):
        """The keys as three arrays (n,): inverse, relations, subjects."""
        pairs, subjects = np.divmod(self.keys, len(self.entities or "1"))
        return *np.divmod(pairs, max(len(self.relations), 1)), subjects

    def listed(self):
        """All bounds as a list of Bound, those of single subjects last."""
        of = zip(*(part.tolist() for part in (*self._of_keys(), self.own)), strict=True)
        own = [Bound(self.relations[r], *row, bool(inverse), None, "", self.entities[s]) for inverse, r, s, row in of]
        return [*self.stated, *own]

    def __len__(self):
        return len(self.stated) + len(self.keys)

    def _check(self, bounds):
        """CardkgeError where bounds of one relation leave some subject no whole number."""
        for number, one in enumerate(bounds):
            if not leave_a_number(one.lower, one.upper):
                raise CardkgeError(f"no whole number lies within {one}; correct it")
            for other in bounds[number + 1 :]:
                if one.key == other.key:
                    raise CardkgeError(f"twice the same relation and class: {one} and {other}; keep one")
                if leave_a_number(max(one.lower, other.lower), min(one.upper, other.upper)):
                    continue
                members = [self.types.members(kind) for kind in (one.kind, other.kind) if kind is not None]
                if not members or len(functools.reduce(np.intersect1d, members)):
                    raise CardkgeError(f"no number is left between {one} and {other}; correct one of them")

    @property
    def special(self):
        """The bounds of classes, inverses and single subjects."""
        return [b for b in self.listed() if b.inverse or b.kind is not None or b.subject is not None]

    def for_names(self, entities, relations):
        """The bounds for other vocabularies; those of relations or single subjects that these lack are left out."""
        place = {name: i for i, name in enumerate(entities)}
        types = self.types
        if self.entities not in (None, entities):
            pairs = self.types.pairs.tolist()
            pairs = [(place[self.entities[e]], kind) for e, kind in pairs if self.entities[e] in place]
            types = Types(self.types.classes, pairs)
        known = set(relations)
        kept = [b for b in self.listed() if b.relation in known and (b.subject is None or b.subject in place)]
        return GraphBounds(kept, relations, types, entities)

    def is_bounded(self, inverse=False):
        """(R,) bool: whether a relation has a bound other than (0, inf) for any subject."""
        bounded = super().is_bounded(inverse)
        for (relation, backward), bounds in self._of_classes.items():
            if backward == inverse:
                bounded[relation] |= any(bound.lower > 0 or bound.upper < np.inf for bound in bounds)
        backward, relations, _ = self._of_keys()
        bounded[relations[(backward == inverse) & is_bounded(self._found)]] = True
        return bounded

    def of(self, relations, subjects, inverse=False):
        """(n, 2) float64: the lower and the upper bound that hold for each pair of subject and relation.

        subjects: (n,) ids of heads, or of tails if inverse. relations: (n,) ids, or one id for all."""
        subjects = np.asarray(subjects, np.int64)
        relations = np.broadcast_to(np.asarray(relations, np.int64), subjects.shape)
        found = self._of_all_and_classes(relations, subjects, inverse)
        if len(self.keys):
            keys = self._key(int(inverse), relations, subjects)
            at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            found = np.where((self.keys[at] == keys)[:, None], self._found[at], found)
        return found

    def _of_all_and_classes(self, relations, subjects, inverse):
        found = super().of(relations, subjects, inverse)
        for relation in np.unique(relations).tolist() if self._of_classes else ():
            rows = np.flatnonzero(relations == relation)
            for bound in self._of_classes.get((relation, inverse), ()):
                here = rows[self.types.has(subjects[rows], bound.kind)]
                found[here, 0] = np.maximum(found[here, 0], bound.lower)
                found[here, 1] = np.minimum(found[here, 1], bound.upper)
        return found

    def without_lower(self):
        """The same bounds with lower bounds of 0."""
        other = super().without_lower()
        other.stated = tuple(replace(bound, lower=0.0) for bound in self.stated)
        other._of_classes = {key: [replace(b, lower=0.0) for b in some] for key, some in self._of_classes.items()}
        other.own, other._found = self.own * [0, 1], self._found * [0, 1]
        return other


# --- files


def leave_a_number(lower, upper):
    """Whether a whole number lies between the bounds."""
    return math.ceil(lower) <= upper


def tightest(one, other):
    """Two bounds of the same relation and class as one. Raises CardkgeError where they leave no whole number."""
    lower = one if one.lower >= other.lower else other
    upper = one if one.upper <= other.upper else other
    if not leave_a_number(lower.lower, upper.upper):
        raise CardkgeError(f"no number is left between {one} and {other}; correct one of them")
    where = lower.where if lower.where == upper.where else f"{lower.where} and {upper.where}"
    return replace(one, lower=lower.lower, upper=upper.upper, where=where)


def read_tsv(path, graph=None, notes=None):
    """Read a TSV file of bounds as a list of Bound.

    graph: the Vocabulary that names are looked up in; None takes every name, and types or entities of None in it take
    every class or entity. notes: a list to which warnings are added: names found under another spelling, and the
    number of bounds of unknown entities, which are dropped.

    Raises CardkgeError, naming file and line, for a line with other than three to five fields or with both a class and
    an entity, for an unknown relation or class, for numbers that are not 0 <= lower <= upper with a whole number
    between, and for the same relation and class a second time."""
    graph, notes = graph or Vocabulary(None, None, None), [] if notes is None else notes
    known = {"relation": graph.relations, "class": graph.types and graph.types.classes, "entity": graph.entities}
    known = {what: Known(names, graph.prefixes, what) for what, names in known.items() if names is not None}
    found, seen, dropped = [], {}, []
    for at, fields in read_fields(path):
        where, kept = f"{path}:{at}", found
        try:
            bound = bound_of_fields(fields, where, graph.relations or ())
            for what, attribute in (("relation", "relation"), ("class", "kind"), ("entity", "subject")):
                name = getattr(bound, attribute)
                if what not in known or name is None:
                    continue
                same, note = known[what].find(name)
                notes += [f"{where}: {note}"] if note else []
                if same is None and what != "entity":
                    raise CardkgeError(known[what].fault(name))
                if same is None:
                    kept = dropped
                bound = bound if same in (None, name) else replace(bound, **{attribute: same})
            if bound.subject is None and bound.key in seen:
                of_class = f" of class {bound.kind!r}" if bound.kind is not None else ""
                before = f"for the second time, after line {seen[bound.key]}; keep one"
                raise CardkgeError(f"relation {bound.name!r}{of_class} {before}")
        except CardkgeError as error:
            raise line_error(path, at, fields, error) from None
        kept.append(bound)
        seen[bound.key] = at
    if dropped:
        notes.append(f"{path}: {len(dropped):,} bounds of unknown entities dropped, the first {dropped[0]}")
    return found


def bound_of_fields(fields, where, relations):
    """The Bound of a line, names as they are. relations: known names, which may begin with ^ themselves."""
    if len(fields) not in (3, 4, 5):
        expected = "relation, lower, upper and perhaps a class (or, that empty, an entity) with tabs between"
        raise CardkgeError(f"expected {expected}, found {len(fields)} fields")
    name, *numbers = fields[:3]
    kind, subject = (each or None for each in [*fields[3:], "", ""][:2])
    if kind and subject:
        raise CardkgeError(f"a class, {kind!r:.80}, and an entity, {subject!r:.80}; leave one of the two fields empty")
    inverse = name.startswith("^") and name not in relations
    name = name[inverse:]
    if not name:
        raise CardkgeError("an empty name")
    found = " and ".join(map(repr, numbers))
    if not all(NUMBER.fullmatch(number) for number in numbers):
        raise CardkgeError(f"expected two numbers of at least 0, inf for no upper bound, found {found}")
    lower, upper = map(float, numbers)
    if not lower <= upper or lower == math.inf:
        raise CardkgeError(f"expected 0 <= lower <= upper, lower finite, inf for no upper bound, found {found}")
    if not leave_a_number(lower, upper):
        raise CardkgeError(f"no whole number lies between lower {numbers[0]} and upper {numbers[1]}")
    return Bound(name, lower, upper, inverse, kind, where, subject)


def tsv_text(bounds):
    """The text of a TSV file of bounds."""
    lines = []
    for bound in bounds:
        numbers = [repr(float(number)).removesuffix(".0") for number in (bound.lower, bound.upper)]
        of = [bound.kind] if bound.kind is not None else ["", bound.subject] if bound.subject is not None else []
        lines.append("\t".join([bound.name, *numbers, *of]) + "\n")
    text = "".join(lines)
    return "\ufeff" + text if text.startswith("\ufeff") else text
