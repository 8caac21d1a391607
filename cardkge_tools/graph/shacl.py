"""Bounds from and to RDF: SHACL shapes, OWL restrictions and property characteristics (extra `rdf`).

OWL's own reading is wider than ours: there nothing says that two names are two things; here they are."""

import collections
import math
import re
from dataclasses import replace

from cardkge import CardkgeError
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import Bound, Known, tightest

# --- SHACL and OWL


COUNTS = "minCount", "maxCount", "qualifiedMinCount", "qualifiedMaxCount"
SCHEMA = (rdf.SUBCLASS, rdf.RDFS + "range", rdf.RDFS + "domain")


class Index:
    """The triples of a small RDF graph, by subject and property. base: of its relative IRIs."""

    def __init__(self, path, base=None):
        triples, self.prefixes = rdf.read_graph(path, base=base)
        self.path = path
        self.relative = [] if base else rdf.relative_notes(dict.fromkeys(term for triple in triples for term in triple))
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
    """Bounds of a file of SHACL shapes or OWL axioms (or its Index): (list of Bound whose names are terms, notes).

    SHACL: sh:minCount, sh:maxCount and the qualified counts of property shapes whose path is a property or the inverse
    of one. A shape speaks of the class that is its target (sh:targetClass, or the shape is a class itself), or of every
    subject where the target is the subjects (objects, of an inverse path) of the same property. Shapes are followed
    through sh:property, sh:node and sh:and. OWL: functional and inverse functional properties; restrictions above or
    equal to a class, in intersections too; of owl:Thing, every subject. A qualified minimum is a lower bound. A
    qualified maximum holds for all values only where they are all of that class (rdfs:range, or sh:class in the same
    shape); else it is reported. So is everything else about numbers that is not read.
    Raises CardkgeError where two of them leave no number.
    """
    reader = _Standards(path if isinstance(path, Index) else Index(path))
    reader.read_shacl()
    reader.read_owl()
    return reader.result(), reader.notes()


class _Standards:
    """Collects bounds, term by term, from an Index."""

    def __init__(self, index):
        self.index, self.path = index, index.path
        self.names = rdf.Prefixes(rdf.WELL_KNOWN | index.prefixes)
        self.found = {}  # key -> Bound
        self.visited = set()  # shapes of properties that were read, or that the notes speak of
        self.unread = collections.Counter()

    def notes(self):
        several = [what + (f" ({number} times)" if number > 1 else "") for what, number in self.unread.items()]
        return [f"{self.path}: {what}" for what in self.index.relative + several]

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


def of_graph(bounds, graph, prefixes):
    """(bounds with the graph's names, notes): what the graph does not have is dropped and counted."""
    relations, classes = Known(graph.relations, prefixes, "relation"), Known(graph.types.classes, prefixes, "class")
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
