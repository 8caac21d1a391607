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

from cardkge import CardkgeError, mine_bounds
from cardkge_tools import rdf
from cardkge_tools.display import LONGEST
from cardkge_tools.engine.limits import PlainBounds
from cardkge_tools.files import read_blocks, replace_file
from cardkge_tools.spelling import plain_form

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
    for at, fields in _lines(path):
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


def _lines(path):
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


def read_files(files, graph, prefixes=None, schema=()):
    """Bounds of a graph from files: TSV, or RDF by the endings of their names. Returns (Constraints, notes).

    In TSV a relation, or a class, that the graph does not have is an error that names the line; in RDF, which may
    describe more than this graph, the bound is dropped and counted in the notes (sentences). schema: (subject,
    property, object) terms of the graph's own schema; what it and each of the RDF files say of ranges, domains and
    subclasses holds for all of these.
    """
    prefixes = prefixes or graph.prefixes
    indices = {path: _Index(path) for path in files if rdf.format_of(path)}
    schema = [*schema, *(triple for index in indices.values() for triple in index.schema)]
    found, notes = [], []
    for path in files:
        if path in indices:
            indices[path].learn(schema)
            bounds, own = read_rdf(indices[path])
            bounds, dropped = _of_graph(bounds, graph, prefixes)
            notes += own + [f"{path}: {what}" for what in dropped]
            found = _both(found, bounds)
        else:
            bounds = read_tsv(path, graph, notes)
            found += bounds
        if not bounds:
            notes.append(f"{path}: no bound in it for this graph")
    return Constraints(found, graph.relations, graph.types, graph.entities), notes


def _both(known, more):
    """Bounds of shapes beside others: of the same relation and class the tightest of both."""
    found = {bound.key: bound for bound in known}
    for bound in more:
        found[bound.key] = tightest(found.get(bound.key, bound), bound)
    return list(found.values())


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
    relations = None if graph is None else _Known(graph.relations, graph.prefixes, "relation")
    classes = None if graph is None or graph.types is None else _Known(graph.types.classes, graph.prefixes, "class")
    found, seen, notes = [], {}, [] if notes is None else notes
    for at, fields in _lines(path):
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


class _Known:
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


def find_constraints(bounds, dataset):
    """(Constraints, notes) as a setting names them: "none", "mined" (from train), or files with commas between."""
    if bounds in ("none", "mined"):
        table = np.tile([0.0, np.inf], (dataset.n_relations, 1))
        if bounds == "mined":
            table = mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
        graph = vocabulary(dataset)
        plain = [Bound(name, *row, where=bounds) for name, row in zip(dataset.relations, table.tolist(), strict=True)]
        return Constraints(plain, graph.relations, graph.types, graph.entities), []
    text = os.fspath(bounds)
    files = [text] if os.path.exists(text) else [part.strip() for part in text.split(",")]
    for path in files:
        if not os.path.exists(path):
            raise CardkgeError(f"bounds {path!r}: neither mined, nor none, nor a file")
    return read_files(files, vocabulary(dataset))


def find_bounds(bounds, dataset):
    """Bounds (R, 2) of every subject, as `find_constraints` finds them; those of classes and inverses left out."""
    return find_constraints(bounds, dataset)[0].plain


def read_bounds(path, relations):
    """Read a TSV file of bounds that speaks of every subject alone, as (R, 2) float64, columns lower and upper.

    (0, inf) for a relation that the file leaves out. relations: the R names of the graph.

    Raises CardkgeError, naming file and line, for all that `read_tsv` does, and for a bound of a class or an inverse.
    """
    bounds = read_tsv(path, Vocabulary([], list(relations)))
    for bound in bounds:
        if bound.inverse or bound.kind is not None:
            raise CardkgeError(
                f"{bound.where}: a bound of a class or an inverse, found {bound.name!r}; read_files reads it"
            )
    return Constraints(bounds, relations).plain


def write_bounds(path, bounds, relations):
    """Write (R, 2) bounds of the R named relations as read_bounds reads them, every relation."""
    rows = np.asarray(bounds, np.float64).tolist()
    write_tsv(path, [Bound(name, *row) for name, row in zip(relations, rows, strict=True)])


def said(bounds):
    """What bounds say: a set of (relation, inverse, class, lower, upper), without those that allow every number."""
    return {(*b.key, b.lower, b.upper) for b in bounds if b.lower > 0 or b.upper < math.inf}


# --- SHACL and OWL


COUNTS = "minCount", "maxCount", "qualifiedMinCount", "qualifiedMaxCount"
SCHEMA = (rdf.SUBCLASS, rdf.RDFS + "range", rdf.RDFS + "domain")


class _Index:
    """The triples of a small RDF graph, by subject and property."""

    def __init__(self, path):
        triples, self.prefixes = rdf.read_graph(path)
        self.path = path
        self.objects = collections.defaultdict(list)
        self.subjects = collections.defaultdict(list)  # (property, object) -> subjects
        for subject, predicate, value in triples:
            self.objects[subject, predicate[1:-1]].append(value)
            self.subjects[predicate[1:-1], value].append(subject)
        self.nodes = list(dict.fromkeys(subject for subject, _, _ in triples))
        self.schema = [triple for triple in triples if triple[1][1:-1] in SCHEMA]
        self.learn(())

    def learn(self, schema):
        """Takes (subject, property, object) terms of another graph's schema in, but for blank nodes, whose labels mean
        something else there."""
        for subject, predicate, value in schema:
            values = self.objects[subject, predicate[1:-1]]
            if value not in values and not any(term.startswith("_:") for term in (subject, value)):
                values.append(value)
        subclass = [(s, value) for (s, iri), values in self.objects.items() if iri == rdf.SUBCLASS for value in values]
        self._above = rdf.superclasses(subclass)

    def all(self, subject, iri):
        return self.objects.get((subject, iri), [])

    def one(self, subject, iri):
        values = self.all(subject, iri)
        return values[0] if values else None

    def has_type(self, subject, iri):
        return f"<{iri}>" in self.all(subject, rdf.TYPE)

    def items(self, node):
        """The members of an RDF list."""
        found, seen = [], set()
        while node is not None and node != f"<{rdf.RDF}nil>" and node not in seen:
            seen.add(node)
            found += self.all(node, rdf.RDF + "first")
            node = self.one(node, rdf.RDF + "rest")
        return found

    def count(self, subject, iri, where):
        """A number of the graph; None where it is absent."""
        value = self.one(subject, iri)
        if value is None:
            return None
        number = re.match(r'"\+?([0-9]{1,15})"', value)
        if not number:
            raise CardkgeError(f"{where}: {iri.rpartition('#')[2]} is {value:.60}; expected a number of at least 0")
        return int(number[1])

    def within(self, kind, other):
        """Whether a class is another, or below it."""
        return kind == other or other in self._above.get(kind, ())

    def ranges(self, relation, inverse):
        """Classes that the values of the relation (or its subjects, if inverse) are said to have."""
        return self.all(relation, rdf.RDFS + ("domain" if inverse else "range"))


def read_rdf(path):
    """Bounds of a file of SHACL shapes or OWL axioms (or its _Index): (list of Bound whose names are terms, notes).

    SHACL: sh:minCount, sh:maxCount and the qualified counts of property shapes whose path is a property or the inverse
    of one. A shape speaks of the class that is its target (sh:targetClass, or the shape is a class itself), or of every
    subject where the target is the subjects (objects, of an inverse path) of the same property. Shapes are followed
    through sh:property, sh:node and sh:and. OWL: functional and inverse functional properties; restrictions above or
    equal to a class, in intersections too; of owl:Thing, every subject. A qualified minimum is a lower bound. A
    qualified maximum holds for all values only where they are all of that class (rdfs:range, or sh:class in the same
    shape); else it is reported. So is everything else about numbers that is not read.
    Raises CardkgeError where two of them leave no number.
    """
    reader = _Standards(path if isinstance(path, _Index) else _Index(path))
    reader.read_shacl()
    reader.read_owl()
    return reader.result(), reader.notes()


class _Standards:
    """Collects bounds, term by term, from an _Index."""

    def __init__(self, index):
        self.index, self.path = index, index.path
        self.names = rdf.Prefixes(rdf.WELL_KNOWN | index.prefixes)
        self.found = {}  # key -> Bound
        self.visited = set()  # shapes of properties that were read, or that the notes speak of
        self.unread = collections.Counter()

    def notes(self):
        return [
            f"{self.path}: {what}" + (f" ({number} times)" if number > 1 else "")
            for what, number in self.unread.items()
        ]

    def where(self, node):
        return f"{self.path}, {'a nameless shape' if node.startswith('_:') else self.names.name(node)}"

    def result(self):
        """The bounds, their names as terms again."""
        term = self.names.term
        return [replace(b, relation=term(b.relation), kind=b.kind and term(b.kind)) for b in self.found.values()]

    def add(self, relation, inverse, lower, upper, kind, node):
        """Both hold: of several bounds of the same key the tightest."""
        names, upper = self.names, math.inf if upper is None else upper
        if lower or upper < math.inf:
            kind = None if kind is None else names.name(kind)
            new = Bound(names.name(relation), float(lower or 0), float(upper), inverse, kind, self.where(node))
            self.found[new.key] = tightest(self.found.get(new.key, new), new)

    # SHACL

    def read_shacl(self):
        index, sh = self.index, rdf.SHACL
        inner = {
            value
            for (_, iri), values in index.objects.items()
            if iri in (sh + "property", sh + "node")
            for value in values
        }
        inner |= {m for (_, iri), vs in index.objects.items() if iri == sh + "and" for v in vs for m in index.items(v)}
        for node in index.nodes:
            if not any(index.all(node, sh + name) for name in ("property", "path", "node", "and")):
                continue
            targets = self.targets(node)
            if targets:
                self.shape(node, targets, set())
            elif node not in inner:
                self.visited |= {node, *index.all(node, sh + "property")}
                self.unread[f"shape {self.names.name(node)} has no target that is read"] += 1
        for node in index.nodes:
            if node not in self.visited and any(index.all(node, sh + name) for name in COUNTS):
                path = index.one(node, sh + "path") or node
                self.unread[f"counts of {self.names.name(path)} that hold for the values of a property only"] += 1

    def targets(self, node):
        """[(kind of target, term)] of a shape: "class", "subjects", "objects"."""
        index, sh = self.index, rdf.SHACL
        found = [("class", kind) for kind in index.all(node, sh + "targetClass")]
        found += [("subjects", relation) for relation in index.all(node, sh + "targetSubjectsOf")]
        found += [("objects", relation) for relation in index.all(node, sh + "targetObjectsOf")]
        if index.has_type(node, rdf.RDFS + "Class") or index.has_type(node, rdf.OWL + "Class"):
            found.append(("class", node))
        for name in ("targetNode", "target"):
            if index.all(node, sh + name):
                self.unread[f"sh:{name} is not read ({self.names.name(node)})"] += 1
        return found

    def shape(self, node, targets, seen):
        index, sh = self.index, rdf.SHACL
        self.visited.add(node)
        if '"true"' in (index.one(node, sh + "deactivated") or ""):
            self.visited |= set(index.all(node, sh + "property"))
            return
        if node in seen:
            return
        seen = {*seen, node}
        if index.all(node, sh + "path"):
            self.property_shape(node, targets)
            return
        followed = [*index.all(node, sh + "property"), *index.all(node, sh + "node")]
        followed += [member for value in index.all(node, sh + "and") for member in index.items(value)]
        for inner in followed:
            self.shape(inner, targets, seen)
        for name in ("or", "xone", "not"):
            if index.all(node, sh + name):
                self.unread[f"sh:{name} is not read ({self.names.name(node)})"] += 1

    def property_shape(self, node, targets):
        index, sh, where = self.index, rdf.SHACL, self.where(node)
        path = index.one(node, sh + "path")
        back = index.one(path, sh + "inversePath")
        relation, inverse = (path, False) if back is None else (back, True)
        lower, upper, low, up = (index.count(node, sh + name, where) for name in COUNTS)
        if all(number is None for number in (lower, upper, low, up)):
            return
        if not relation.startswith("<"):
            self.unread["paths other than a property or its inverse are not read"] += 1
            return
        if low:
            lower = max(lower or 0, low)
        if up is not None:
            shape = index.one(node, sh + "qualifiedValueShape")
            kinds = index.all(shape, sh + "class") if shape else []
            known = [*index.ranges(relation, inverse), *self.sibling_classes(node, path)]
            if kinds and all(any(index.within(kind, each) for kind in known) for each in kinds):
                upper = up if upper is None else min(upper, up)
            else:
                self.unread[
                    f"sh:qualifiedMaxCount of {self.names.name(relation)}, whose values may be of other classes"
                ] += 1
        for what, term in targets:
            if what == "class":
                self.add(relation, inverse, lower, upper, term, node)
            elif term == relation and (what == "objects") == inverse:
                self.add(relation, inverse, lower, upper, None, node)
            else:
                self.unread[f"{what} of {self.names.name(term)} as target of a bound on another property"] += 1

    def sibling_classes(self, node, path):
        """sh:class of the property shapes with this path in the same node shape, this one too."""
        index, sh = self.index, rdf.SHACL
        found = list(index.all(node, sh + "class"))
        for parent in index.subjects.get((sh + "property", node), ()):
            for other in index.all(parent, sh + "property"):
                if index.one(other, sh + "path") == path and path.startswith("<"):
                    found += index.all(other, sh + "class")
        return found

    # OWL

    def read_owl(self):
        index, owl = self.index, rdf.OWL
        for name, inverse in (("FunctionalProperty", False), ("InverseFunctionalProperty", True)):
            for relation in index.subjects.get((rdf.TYPE, f"<{owl}{name}>"), ()):
                self.add(*self.property(relation, inverse), 0, 1, None, relation)
        for node in index.nodes:
            if node.startswith("<"):
                for iri in (rdf.SUBCLASS, owl + "equivalentClass"):
                    for value in index.all(node, iri):
                        self.class_axiom(None if node == f"<{owl}Thing>" else node, value, node)
                for value in index.all(node, owl + "intersectionOf"):
                    for member in index.items(value):
                        self.class_axiom(node, member, node)

    def property(self, relation, inverse=False):
        """(the property, whether its inverse is meant)."""
        back = self.index.one(relation, rdf.OWL + "inverseOf") if relation.startswith("_:") else None
        return (relation, inverse) if back is None else (back, not inverse)

    def class_axiom(self, kind, value, node):
        """Every member of the class `kind` is a `value`."""
        index, owl, where = self.index, rdf.OWL, self.where(node)
        for members in index.all(value, owl + "intersectionOf"):
            for member in index.items(members):
                if not member.startswith("<"):
                    self.class_axiom(kind, member, node)
        relation = index.one(value, owl + "onProperty")
        if relation is None:
            return
        relation, inverse = self.property(relation)
        counts = {n: index.count(value, owl + n, where) for n in ("minCardinality", "maxCardinality", "cardinality")}
        lower = _largest(counts["minCardinality"], counts["cardinality"])
        upper = _smallest(counts["maxCardinality"], counts["cardinality"])
        counts = {
            n: index.count(value, owl + n, where)
            for n in ("minQualifiedCardinality", "maxQualifiedCardinality", "qualifiedCardinality")
        }
        lower = _largest(lower, counts["minQualifiedCardinality"], counts["qualifiedCardinality"])
        if index.all(value, owl + "someValuesFrom"):
            lower = _largest(lower, 1)
        top = _smallest(counts["maxQualifiedCardinality"], counts["qualifiedCardinality"])
        if top is not None:
            kinds = index.all(value, owl + "onClass")
            known = index.ranges(relation, inverse)
            if all(each == f"<{owl}Thing>" or any(index.within(k, each) for k in known) for each in kinds):
                upper = _smallest(upper, top)
            else:
                self.unread[
                    f"qualified maximum of {self.names.name(relation)}, whose values may be of other classes"
                ] += 1
        if lower is not None or upper is not None:
            self.add(relation, inverse, lower, upper, kind, node)


def _largest(*numbers):
    return max((number for number in numbers if number is not None), default=None)


def _smallest(*numbers):
    return min((number for number in numbers if number is not None), default=None)


def named(bounds, prefixes):
    """Bounds whose names are terms, with names of a graph."""
    return [replace(b, relation=prefixes.name(b.relation), kind=b.kind and prefixes.name(b.kind)) for b in bounds]


def _of_graph(bounds, graph, prefixes):
    """(bounds with the graph's names, notes): what the graph does not have is dropped and counted."""
    relations, classes = _Known(graph.relations, prefixes, "relation"), _Known(graph.types.classes, prefixes, "class")
    found, strangers, empty, notes = [], [], [], []
    for bound in bounds:
        relation, *said = relations.find(prefixes.name(bound.relation))
        kind = None
        if bound.kind is not None:
            kind, note = classes.find(prefixes.name(bound.kind))
            said.append(note)
        if relation is None:
            strangers.append(bound.relation)
        elif kind is None and bound.kind is not None:
            empty.append(bound.kind)
        else:
            notes += [each for each in said if each and each not in notes]
            found.append(replace(bound, relation=relation, kind=kind))
    for what, terms in (("relations that the graph does not have", strangers), ("classes that have no member", empty)):
        if terms:
            several = [prefixes.name(term) for term in dict.fromkeys(terms)]
            some = ", ".join(several[:3] + ["..."] * (len(several) > 3))
            notes.append(f"{len(terms)} of {len(bounds)} bounds dropped, on {what} ({some})")
    return found, notes


# --- writing Turtle


def turtle_text(bounds, prefixes=None, standard="shacl"):
    """SHACL shapes, or OWL axioms (standard="owl"), of Bounds with names of a graph, as Turtle.

    A bound of every subject is a shape whose target is the subjects (objects, if inverse) of the property itself, or a
    restriction of owl:Thing. Bounds that are no whole numbers are rounded inwards. Read back they are the same.
    """
    prefixes = prefixes or rdf.Prefixes()
    namespaces = {**prefixes.namespaces}
    ours = rdf.Prefixes(namespaces)
    for prefix in ("sh",) if standard == "shacl" else ("owl", "rdfs"):
        ours.add(prefix, rdf.WELL_KNOWN[prefix])
    if any(name is not None and prefixes.expand(name) is None for b in bounds for name in (b.relation, b.kind)):
        ours.add("name", rdf.NAME_OF_NOTHING)
    lines = [f"@prefix {prefix}: <{namespace}> .\n" for prefix, namespace in ours.namespaces.items()]
    write = _shacl_blocks if standard == "shacl" else _owl_blocks
    blocks = write(bounds, lambda name: _turtle(prefixes.term(name), ours), lambda term: _turtle(term, ours))
    return "".join([*lines, *blocks])


def _turtle(term, prefixes):
    """A term as Turtle writes it, by a prefix where its last part is plain."""
    if term.startswith("<"):
        prefix, colon, rest = prefixes.shorten(term[1:-1]).partition(":")
        if colon and prefix in prefixes.namespaces and re.fullmatch(r"[^\W.-][\w-]*|", rest):
            return f"{prefix}:{rest}"
    return term


def _whole(bound):
    """(lower, upper) as whole numbers, upper None for infinity."""
    return math.ceil(bound.lower), None if bound.upper == math.inf else math.floor(bound.upper)


def _shacl_blocks(bounds, name, term):
    groups = collections.defaultdict(list)  # the target, written out -> bounds
    for bound in bounds:
        if bound.kind is not None:
            target = f"{term('<' + rdf.SHACL + 'targetClass>')} {name(bound.kind)}"
        else:
            of = "targetObjectsOf" if bound.inverse else "targetSubjectsOf"
            target = f"{term('<' + rdf.SHACL + of + '>')} {name(bound.relation)}"
        groups[target].append(bound)
    sh = term(f"<{rdf.SHACL}NodeShape>").removesuffix("NodeShape")
    for target, members in groups.items():
        parts = [f"\n[] a {sh}NodeShape ;\n    {target}"]
        for bound in members:
            lower, upper = _whole(bound)
            path = f"[ {sh}inversePath {name(bound.relation)} ]" if bound.inverse else name(bound.relation)
            counts = f" ; {sh}minCount {lower}" * (lower > 0) + (
                f" ; {sh}maxCount {upper}" if upper is not None else ""
            )
            parts.append(f" ;\n    {sh}property [ {sh}path {path}{counts} ]")
        yield "".join([*parts, " .\n"])


def _owl_blocks(bounds, name, term):
    owl = term(f"<{rdf.OWL}Thing>").removesuffix("Thing")
    subclass = term(f"<{rdf.SUBCLASS}>")
    integer = "<http://www.w3.org/2001/XMLSchema#nonNegativeInteger>"
    for bound in bounds:
        lower, upper = _whole(bound)
        kind = f"{owl}Thing" if bound.kind is None else name(bound.kind)
        path = f"[ {owl}inverseOf {name(bound.relation)} ]" if bound.inverse else name(bound.relation)
        if lower == upper:
            counts = [("cardinality", lower)]
        else:
            counts = [("minCardinality", lower)] * (lower > 0) + [("maxCardinality", upper)] * (upper is not None)
        for what, number in counts:
            restriction = f'[ a {owl}Restriction ; {owl}onProperty {path} ; {owl}{what} "{number}"^^{integer} ]'
            yield f"\n{kind} {subclass} {restriction} .\n"


def write_bounds_file(path, bounds, prefixes=None, standard="shacl"):
    """Write Bounds as TSV, or as Turtle where the name of the file ends in .ttl."""
    if rdf.format_of(path) not in (None, "TURTLE"):
        raise CardkgeError(f"{path}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    bounds = getattr(bounds, "bounds", bounds)
    text = turtle_text(bounds, prefixes, standard) if rdf.format_of(path) else tsv_text(bounds)
    replace_file(path, lambda file: file.write(text.encode()))


def convert(source, target, prefixes=None, standard="shacl"):
    """Convert a file of bounds, TSV or RDF, to another; returns (the bounds, notes).

    prefixes: of the names in TSV; None takes `prefixes.tsv` beside the TSV file (the source, or else the target) and
    those that an RDF source declares.
    """
    if rdf.format_of(source):
        bounds, notes = read_rdf(source)
        if prefixes is None:
            prefixes = rdf.read_prefixes(Path(target).parent / "prefixes.tsv")
        if not prefixes.namespaces:
            prefixes = rdf.Prefixes(_Index(source).prefixes)
        bounds = named(bounds, prefixes)
    else:
        bounds, notes = read_tsv(source), []
        prefixes = prefixes or rdf.read_prefixes(Path(source).parent / "prefixes.tsv")
    write_bounds_file(target, bounds, prefixes, standard)
    if rdf.format_of(target) and any(b.lower % 1 or (b.upper < math.inf and b.upper % 1) for b in bounds):
        notes.append("bounds that are no whole numbers were rounded inwards")
    return bounds, notes


# --- mining


@dataclass(frozen=True)
class Maximum:
    """A significant maximum cardinality. relation, inverse: whose. kind: class id, or None. upper: the maximum.

    subjects: heads (tails, if inverse) of the relation, of that class. support: those with at least `upper`.
    likelihood: the share of the support with exactly `upper`; bound: its lower confidence bound. largest: the most any
    subject has.
    """

    relation: int
    inverse: bool
    kind: int | None
    upper: int
    subjects: int
    support: int
    likelihood: float
    bound: float
    largest: int


def significant_maxima(triples, n_entities, n_relations, types=None, min_support=1, confidence=0.95, likelihood=0.9):
    """Maxima that the data supports, of each relation, its inverse, and of the subjects of each class (Giacometti,
    Markhoff, Soulet, ISWC 2019).

    With n_i subjects that have exactly i tails and n_{>=i} that have i or more, the chance that a subject with i has no
    more is estimated by n_i / n_{>=i}; it is at least n_i / n_{>=i} - sqrt(log(1 / (1 - confidence)) / (2 n_{>=i}))
    with that confidence (Hoeffding's bound). The maximum is the smallest i where this lower bound reaches `likelihood`
    and n_{>=i} >= min_support; a relation may have none. A class's is left out where it is not below the relation's.
    triples: (n, 3) ids, distinct. types: Types. Returns a list of Maximum by relation, direction, class.
    """
    for name, value in (("confidence", confidence), ("likelihood", likelihood)):
        if not 0 < value < 1:
            raise CardkgeError(f"{name} must lie between 0 and 1, found {value:g}")
    found = []
    for inverse in (False, True):
        subjects = triples[:, 2 if inverse else 0].astype(np.int64)
        pairs, counts = np.unique(triples[:, 1].astype(np.int64) * n_entities + subjects, return_counts=True)
        relations, subjects = np.divmod(pairs, n_entities)
        contexts = [(np.zeros(len(pairs), np.int64), relations, counts)]
        if types is not None and types.classes:
            of_types = types.pairs
            first = np.searchsorted(of_types[:, 0], subjects, "left")
            number = np.searchsorted(of_types[:, 0], subjects, "right") - first
            rows = np.repeat(np.arange(len(pairs)), number)
            at = np.arange(len(rows)) + np.repeat(first - np.cumsum(number) + number, number)
            contexts.append((1 + of_types[at, 1], relations[rows], counts[rows]))
        context, relation, count = (np.concatenate(part) for part in zip(*contexts))
        found += _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood)
    whole = {(each.relation, each.inverse): each.upper for each in found if each.kind is None}
    tighter = [m for m in found if m.kind is None or m.upper < whole.get((m.relation, m.inverse), math.inf)]
    return sorted(tighter, key=lambda m: (m.relation, m.inverse, -1 if m.kind is None else m.kind))


def _maxima(context, relation, count, n_relations, inverse, min_support, confidence, likelihood):
    """The Maximum of each context (0: all subjects, 1 + c: class c) and relation; arrays by subject."""
    order = np.lexsort((-count, context * n_relations + relation))
    key, count = (context * n_relations + relation)[order], count[order]
    last = np.flatnonzero(np.append((key[1:] != key[:-1]) | (count[1:] != count[:-1]), len(key) > 0))
    exactly = np.diff(last, prepend=-1)  # subjects with this key and count
    key_of, count_of = key[last], count[last]
    start = np.searchsorted(key, key_of, "left")
    at_least = last + 1 - start  # counts fall within a key
    share = exactly / at_least
    bound = share - np.sqrt(math.log(1 / (1 - confidence)) / (2 * at_least))
    good = np.flatnonzero((bound >= likelihood) & (at_least >= min_support))
    keys, position = np.unique(key_of[good][::-1], return_index=True)  # the smallest count is the last of its key
    found = []
    for k, i in zip(keys.tolist(), good[::-1][position].tolist()):
        kind, r = divmod(k, n_relations)
        subjects = int(np.searchsorted(key, k, "right") - start[i])
        found.append(
            Maximum(
                r,
                inverse,
                kind - 1 if kind else None,
                int(count_of[i]),
                subjects,
                int(at_least[i]),
                float(share[i]),
                float(bound[i]),
                int(count[start[i]]),
            )
        )
    return found


def maxima_as_bounds(maxima, relations, types=None):
    """Bounds (0, maximum) with names."""
    classes = types.classes if types is not None else []
    return [
        Bound(
            relations[m.relation], 0.0, float(m.upper), m.inverse, None if m.kind is None else classes[m.kind], "mined"
        )
        for m in maxima
    ]
