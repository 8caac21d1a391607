"""Cardinality bounds of a relation, of its inverse, and of the subjects of one class: files of them, and mining.

A *bound* says how many tails a head has in a relation (or, written `^relation`, how many heads a tail has): of every
subject, or of the members of one class. What holds for a subject is the tightest of the bounds that apply to it. A
file of bounds is

    relation<TAB>lower<TAB>upper[<TAB>class]

or RDF (extra `rdf`): SHACL shapes, OWL restrictions and property characteristics. OWL's own reading is wider than ours:
there nothing says that two names are two things; here they are.
"""

import collections
import difflib
import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.engine.limits import PlainBounds
from cardkge_tools.graph import rdf
from cardkge_tools.graph.spelling import plain_form
from cardkge_tools.shell.files import read_blocks, replace_file
from cardkge_tools.shell.terminal import LONGEST

NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|inf", re.ASCII)


@dataclass(frozen=True)
class Bound:
    """lower <= number of tails (heads, if inverse) <= upper in a relation, for the members of a class, or (None) all.

    relation, kind: names of the relation and the class. where: file and line, or file and shape.
    """

    relation: str
    lower: float
    upper: float
    inverse: bool = False
    kind: str | None = None
    where: str = ""

    @property
    def name(self):
        """The relation as a file writes it."""
        return f"^{self.relation}" if self.inverse else self.relation

    @property
    def key(self):
        return self.relation, self.inverse, self.kind

    def __str__(self):
        of_class = f" of {self.kind}" if self.kind is not None else ""
        return f"{self.name}{of_class} {self.lower:.15g} to {self.upper:.15g} ({self.where})"


# --- classes of entities


class Types:
    """Which entities are members of which classes.

    classes: names. pairs: (n, 2) int64, entity and class ids, distinct and sorted. unknown: lines of the file about
    entities that the graph does not have.
    """

    def __init__(self, classes=(), pairs=(), unknown=0):
        self.classes, self.unknown = list(classes), unknown
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

    def of(self, entity):
        """Names of an entity's classes."""
        first, last = np.searchsorted(self._keys, np.array([entity, entity + 1]) * max(len(self.classes), 1))
        return [self.classes[key % len(self.classes)] for key in self._keys[first:last].tolist()]


def read_types(path, entities):
    """Read a `types.tsv` (`entity<TAB>class` a line) for a graph with these names of entities; Types without classes
    where there is no such file. Lines about other entities are counted in `unknown`."""
    if not os.path.isfile(path):
        return Types()
    ids, classes, pairs, unknown = {name: i for i, name in enumerate(entities)}, {}, [], 0
    for at, fields in fields_of(path):
        if len(fields) != 2 or "" in fields:
            raise CardkgeError(
                f"{path}:{at}: expected an entity and its class with a tab between, found {fields!r:.80}"
            )
        kind = classes.setdefault(fields[1], len(classes))
        entity = ids.get(fields[0])
        if entity is None:
            unknown += 1
        else:
            pairs.append((entity, kind))
    return Types(classes, pairs, unknown)


def types_text(types, entities):
    """The text of a `types.tsv`."""
    return "".join(f"{entities[entity]}\t{types.classes[kind]}\n" for entity, kind in types.pairs.tolist())


def write_types(path, types, entities):
    """Write Types as `read_types` reads them."""
    replace_file(path, lambda file: file.write(types_text(types, entities).encode()))


def fields_of(path):
    """Yields (line number, fields) of the lines that are not blank."""
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if line.strip(" \t"):
                yield at, line.split("\t")


# --- bounds of a graph


@dataclass(frozen=True)
class Vocabulary:
    """Names of a graph: what bounds may speak of. prefixes: of its IRIs."""

    entities: list
    relations: list
    types: Types = field(default_factory=Types)
    prefixes: rdf.Prefixes = field(default_factory=rdf.Prefixes)


def vocabulary(dataset):
    """The Vocabulary of a Dataset, with the `types.tsv` and `prefixes.tsv` of its folder, if it has one."""
    if dataset.folder is None:
        return Vocabulary(dataset.entities, dataset.relations)
    folder = Path(dataset.folder)
    types = read_types(folder / "types.tsv", dataset.entities)
    return Vocabulary(dataset.entities, dataset.relations, types, rdf.read_prefixes(folder / "prefixes.tsv"))


class Constraints:
    """All bounds of a graph.

    bounds: Bound, each relation and class once for a direction. relations: the R names. types: Types, of the entities
    with these names, where they are given.
    Raises CardkgeError, naming two bounds, where those that apply to some entity leave no number.
    """

    def __init__(self, bounds, relations, types=None, entities=None):
        self.bounds, self.relations, self.types = tuple(bounds), list(relations), types or Types()
        self.entities = entities
        ids = {name: r for r, name in enumerate(self.relations)}
        self._of = collections.defaultdict(list)  # (relation id, inverse) -> bounds
        for bound in self.bounds:
            self._of[ids[bound.relation], bound.inverse].append(bound)
        for several in self._of.values():
            self._check(several)

    def __len__(self):
        return len(self.bounds)

    def _check(self, bounds):
        for number, one in enumerate(bounds):
            for other in bounds[number + 1 :]:
                if one.key == other.key:
                    raise CardkgeError(f"twice the same relation and class: {one} and {other}; keep one")
                if max(one.lower, other.lower) <= min(one.upper, other.upper):
                    continue
                members = None
                for kind in (one.kind, other.kind):
                    if kind is not None:
                        of_kind = self.types.members(kind)
                        members = of_kind if members is None else np.intersect1d(members, of_kind)
                if members is None or len(members):
                    raise CardkgeError(f"no number is left between {one} and {other}; correct one of them")

    @property
    def special(self):
        """The bounds of classes and inverses."""
        return [bound for bound in self.bounds if bound.inverse or bound.kind is not None]

    @property
    def plain(self):
        """(R, 2) float64: the bounds of every subject, forward; (0, inf) where there is none."""
        return self.of_all(inverse=False)

    def of_all(self, inverse):
        """(R, 2) float64: the bounds of one direction that hold for every subject."""
        table = np.tile([0.0, np.inf], (len(self.relations), 1))
        for (relation, backward), bounds in self._of.items():
            for bound in bounds:
                if backward == inverse and bound.kind is None:
                    table[relation] = bound.lower, bound.upper
        return table

    def for_names(self, entities, relations):
        """The same bounds with ids of other vocabularies, of the relations and entities that these have."""
        place = {name: i for i, name in enumerate(entities)}
        if self.entities is None or self.entities == entities:
            types = self.types
        else:
            pairs = [
                (place[self.entities[e]], kind) for e, kind in self.types.pairs.tolist() if self.entities[e] in place
            ]
            types = Types(self.types.classes, pairs)
        known = set(relations)
        return Constraints([b for b in self.bounds if b.relation in known], relations, types, entities)

    def is_bounded(self, inverse=False):
        """(R,) bool: relations with a bound other than (0, inf), of all or some subjects."""
        bounded = np.zeros(len(self.relations), bool)
        for (relation, backward), bounds in self._of.items():
            if backward == inverse:
                bounded[relation] = any(bound.lower > 0 or bound.upper < np.inf for bound in bounds)
        return bounded

    def of(self, relations, subjects, inverse=False):
        """(n, 2) float64: lower and upper bound of each (subject, relation), the tightest of those that apply.

        relations, subjects: (n,) ids, or one relation for all; subjects are heads, or tails if inverse.
        """
        subjects = np.asarray(subjects, np.int64)
        relations = np.broadcast_to(np.asarray(relations, np.int64), subjects.shape)
        found = np.tile([0.0, np.inf], (len(subjects), 1))
        for relation in np.unique(relations).tolist():
            rows = np.flatnonzero(relations == relation)
            for bound in self._of.get((relation, inverse), ()):
                here = rows if bound.kind is None else rows[self.types.has(subjects[rows], bound.kind)]
                found[here, 0] = np.maximum(found[here, 0], bound.lower)
                found[here, 1] = np.minimum(found[here, 1], bound.upper)
        return found


def bounds_of(bounds, relations, subjects, inverse=False):
    """(n, 2) float64: lower and upper bound of (h, r) for each subject h, or of (r, t) for each t if inverse.

    bounds: Constraints; an (R, 2) array, which says nothing of inverses; or a Run, for all that it knows.
    """
    bounds = getattr(bounds, "limits", bounds)
    if not hasattr(bounds, "of"):
        bounds = PlainBounds(bounds, len(bounds))
    return bounds.of(relations, subjects, inverse)


# --- files


def tightest(one, other):
    """One Bound that says what two of the same relation and class say; CardkgeError where they leave no number."""
    lower = one if one.lower >= other.lower else other
    upper = one if one.upper <= other.upper else other
    if lower.lower > upper.upper:
        raise CardkgeError(f"no number is left between {one} and {other}; correct one of them")
    where = lower.where if lower.where == upper.where else f"{lower.where} and {upper.where}"
    return replace(one, lower=lower.lower, upper=upper.upper, where=where)


def read_tsv(path, graph=None, notes=None):
    """Read a TSV file of bounds as a list of Bound. graph: a Vocabulary; None takes every relation and class, types
    None in it every class. notes: a list that takes a sentence for each name that is found under another spelling.

    Raises CardkgeError, naming file and line: other than three or four fields, an unknown relation or class, what is no
    number, NaN, negative, lower above upper, infinite lower, the same relation and class for the second time.
    """
    relations = None if graph is None else Known(graph.relations, graph.prefixes, "relation")
    classes = None if graph is None or graph.types is None else Known(graph.types.classes, graph.prefixes, "class")
    found, seen, notes = [], {}, [] if notes is None else notes
    for at, fields in fields_of(path):
        bound, fault = _bound_of_fields(fields, f"{path}:{at}", relations.names if relations else ())
        for known, name in ((relations, "relation"), (classes, "kind")):
            if fault is None and known is not None and getattr(bound, name) is not None:
                same, note = known.find(getattr(bound, name))
                fault = known.fault(getattr(bound, name)) if same is None else None
                bound = replace(bound, **{name: same})
                notes += [f"{path}:{at}: {note}"] if note else []
        if fault is None and bound.key in seen:
            of_class = f" of class {bound.kind!r}" if bound.kind is not None else ""
            fault = f"relation {bound.name!r}{of_class} for the second time, after line {seen[bound.key]}; keep one"
        if fault:
            raise CardkgeError(f"{path}:{at}: {fault}")
        seen[bound.key] = at
        found.append(bound)
    return found


class Known:
    """Names of a graph, of one kind ("relation", "class"), found by other spellings too."""

    def __init__(self, names, prefixes, kind):
        self.names, self.kind = dict.fromkeys(names), kind
        self.prefixes, self._terms, self._forms = prefixes, None, None

    def find(self, name):
        """(name in the graph, note or None), or (None, None). The same IRI, written short or whole, is the same name;
        else one name of the same plain form is meant, and the note says so."""
        if name in self.names:
            return name, None
        if self._terms is None:
            self._terms = {self.prefixes.term(known): known for known in self.names}
            self._forms = collections.defaultdict(list)
            for term, known in self._terms.items():
                for form in {plain_form(term), plain_form(known)}:
                    self._forms[form].append(known)
        term = self.prefixes.term(name)
        if term in self._terms:
            return self._terms[term], None
        alike = self._forms.get(plain_form(name)) or self._forms.get(plain_form(term)) or ()
        if len(alike) != 1:
            return None, None
        return alike[0], f"{self.kind} {name!a:.80} is not in the data; {alike[0]!a:.80}, which looks alike, is"

    def fault(self, name):
        """What is wrong with a name that is not found."""
        if self.kind == "class" and not self.names:
            return f"class {name!r:.80}, but the data set has no types.tsv, which says the classes of entities"
        near = difflib.get_close_matches(name, self.names, 1) if len(name) <= LONGEST else ()
        meant = f"; did you mean {near[0]!r:.80}?" if near else ""
        where = " (types.tsv)" if self.kind == "class" else ""
        return f"unknown {self.kind} {name!r:.80}; expected one of the data set's {len(self.names)}{where}{meant}"


def _bound_of_fields(fields, where, relations):
    """(Bound, None), or (None, what is wrong). A relation's own name may begin with ^."""
    if len(fields) not in (3, 4):
        return (
            None,
            f"expected relation, lower, upper and perhaps a class with tabs between, found {len(fields)} fields",
        )
    name, *numbers = fields[:3]
    kind = fields[3] if len(fields) == 4 and fields[3] != "" else None
    inverse = name.startswith("^") and name not in relations
    name = name[inverse:]
    if not name:
        return None, "an empty name"
    found = " and ".join(map(repr, numbers))
    if not all(NUMBER.fullmatch(number) for number in numbers):
        return None, f"expected two numbers of at least 0, inf for no upper bound, found {found}"
    lower, upper = map(float, numbers)
    if not lower <= upper or lower == math.inf:
        return None, f"expected 0 <= lower <= upper, lower finite, inf for no upper bound, found {found}"
    return Bound(name, lower, upper, inverse, kind, where), None


def tsv_text(bounds):
    """The text of a TSV file of bounds."""
    lines = []
    for bound in bounds:
        numbers = [repr(float(number)).removesuffix(".0") for number in (bound.lower, bound.upper)]
        lines.append("\t".join([bound.name, *numbers, *([] if bound.kind is None else [bound.kind])]) + "\n")
    text = "".join(lines)
    return "\ufeff" + text if text.startswith("\ufeff") else text


def write_tsv(path, bounds):
    """Write Bounds (or Constraints) as `read_tsv` reads them."""
    text = tsv_text(getattr(bounds, "bounds", bounds))
    replace_file(path, lambda file: file.write(text.encode()))


# --- bounds as a setting names them


def said(bounds):
    """What bounds say: a set of (relation, inverse, class, lower, upper), without those that allow every number."""
    return {(*b.key, b.lower, b.upper) for b in bounds if b.lower > 0 or b.upper < math.inf}
