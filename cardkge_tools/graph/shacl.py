"""Bounds from RDF: SHACL shapes, OWL restrictions and property characteristics (extra `rdf`).

OWL's own reading is wider than ours: there nothing says that two names are two things; here they are."""

import collections
import math
import re
from dataclasses import replace

from cardkge import CardkgeError
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import Bound, Known, tightest

COUNTS = "minCount", "maxCount", "qualifiedMinCount", "qualifiedMaxCount"
CARDINALITIES = "minCardinality", "maxCardinality", "cardinality"
QUALIFIED = "minQualifiedCardinality", "maxQualifiedCardinality", "qualifiedCardinality"
AT_LEAST_ONE = "someValuesFrom", "hasValue", "hasSelf"
UNREAD_TARGETS = "targetNode", "target"
CHOICES = "or", "xone", "not"  # between shapes, which are not read
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
        """The value of a property that has one at most; None where there is none."""
        values = self.all(subject, iri)
        if len(values) > 1:
            several = " and ".join(f"{value:.60}" for value in values[:2])
            what = rdf.Prefixes(rdf.WELL_KNOWN | self.prefixes).shorten(iri)
            owner = "a nameless node" if subject.startswith("_:") else subject
            raise CardkgeError(f"{self.path}, {owner}: {what} has {len(values)} values, {several}; keep one of them")
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
        self.visited = set()  # shapes and restrictions that were read, or that the notes speak of
        self.unread = collections.Counter()

    def notes(self):
        several = [what + (f" ({number} times)" if number > 1 else "") for what, number in self.unread.items()]
        return [f"{self.path}: {what}" for what in self.index.relative + several]

    def where(self, node):
        return f"{self.path}, {self.label(node)}"

    def label(self, node):
        return "a nameless shape" if node.startswith("_:") else self.names.name(node)

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
        own = "property", "path", "node", "and", *CHOICES
        shapes = [node for node in index.nodes if any(index.all(node, sh + name) for name in own)]
        inner = {each for node in shapes for each in self.parts(node)}
        for node in shapes:
            targets = self.targets(node)
            if targets:
                self.shape(node, targets, set())
            elif node not in inner or any(index.all(node, sh + name) for name in UNREAD_TARGETS):
                self.visited |= self.within(node)
                label = self.label(node) if node.startswith("_:") else f"shape {self.label(node)}"
                self.unread[f"{label} has no target that is read"] += 1
        for node in index.nodes:
            if node not in self.visited and any(index.all(node, sh + name) for name in COUNTS):
                path = index.one(node, sh + "path") or node
                self.unread[f"counts of {self.names.name(path)} that hold for the values of a property only"] += 1

    def parts(self, node, names=("property", "node", "and", *CHOICES)):
        """The shapes that a shape names, by these properties."""
        values = [(name, value) for name in names for value in self.index.all(node, rdf.SHACL + name)]
        return [each for name, v in values for each in (self.index.items(v) if name in ("and", "or", "xone") else [v])]

    def within(self, node):
        """The shape and all that it names, and these name."""
        found, stack = set(), [node]
        while stack:
            if (each := stack.pop()) not in found:
                found.add(each)
                stack += self.parts(each)
        return found

    def targets(self, node):
        """[(kind of target, term)] of a shape: "class", "subjects", "objects"."""
        index, sh = self.index, rdf.SHACL
        found = [("class", kind) for kind in index.all(node, sh + "targetClass")]
        found += [("subjects", relation) for relation in index.all(node, sh + "targetSubjectsOf")]
        found += [("objects", relation) for relation in index.all(node, sh + "targetObjectsOf")]
        if index.has_type(node, rdf.RDFS + "Class") or index.has_type(node, rdf.OWL + "Class"):
            found.append(("class", node))
        for name in UNREAD_TARGETS:
            if index.all(node, sh + name):
                self.unread[f"sh:{name} is not read ({self.label(node)})"] += 1
        return found

    def is_off(self, node):
        return re.match('"(true|1)"', self.index.one(node, rdf.SHACL + "deactivated") or "") is not None

    def shape(self, node, targets, seen):
        index, sh = self.index, rdf.SHACL
        self.visited.add(node)
        if self.is_off(node):
            self.visited |= self.within(node)
            return
        if node in seen:
            return
        seen = {*seen, node}
        if index.all(node, sh + "path"):
            self.property_shape(node, targets)
            return
        for inner in self.parts(node, ("property", "node", "and")):
            self.shape(inner, targets, seen)
        for name in CHOICES:
            members = self.parts(node, (name,))
            if any(index.all(each, sh + count) for m in members for each in self.within(m) for count in COUNTS):
                self.visited |= {each for member in members for each in self.within(member)}
                self.unread[f"sh:{name} is not read ({self.label(node)})"] += 1

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
                if path.startswith("<") and index.one(other, sh + "path") == path and not self.is_off(other):
                    found += index.all(other, sh + "class")
        return found

    # OWL

    def read_owl(self):
        index, owl = self.index, rdf.OWL
        for name, inverse in (("FunctionalProperty", False), ("InverseFunctionalProperty", True)):
            for relation in index.subjects.get((rdf.TYPE, f"<{owl}{name}>"), ()):
                self.add_both_ways(relation, inverse, 0, 1, None, relation)
        for node in index.nodes:
            if node.startswith("<"):
                for iri in (rdf.SUBCLASS, owl + "equivalentClass"):
                    for value in index.all(node, iri):
                        self.class_axiom(None if node == f"<{owl}Thing>" else node, value, node)
                for value in index.all(node, owl + "intersectionOf"):
                    for member in index.items(value):
                        self.class_axiom(node, member, node)
        for node in index.nodes:
            named = [n for n in (*CARDINALITIES, *QUALIFIED, *AT_LEAST_ONE) if index.all(node, owl + n)]
            if named and node not in self.visited and index.all(node, owl + "onProperty"):
                relation, _ = self.property(index.one(node, owl + "onProperty"))
                where = self.container(node)
                self.unread[f"owl:{named[0]} of {self.names.name(relation)}{where} is not read"] += 1

    def container(self, node):
        """Where a nameless class stands, as text: within what, and of which named class."""
        above = collections.defaultdict(list)
        for (subject, iri), values in self.index.objects.items():
            for value in values:
                above[value].append((subject, iri))
        inside, seen = "", {node}
        while node.startswith("_:"):
            subject, iri = next(((s, iri) for s, iri in above[node] if s not in seen), (None, None))
            if subject is None:
                return f" in {inside}" if inside else ""
            if iri not in (rdf.RDF + "first", rdf.RDF + "rest", rdf.SUBCLASS, rdf.OWL + "equivalentClass"):
                inside = inside or self.names.shorten(iri)
            seen.add(node := subject)
        return (f" in {inside}" if inside else "") + f" ({self.names.name(node)})"

    def property(self, relation, inverse=False):
        """(the property, whether its inverse is meant)."""
        back = self.index.one(relation, rdf.OWL + "inverseOf") if relation.startswith("_:") else None
        return (relation, inverse) if back is None else (back, not inverse)

    def add_both_ways(self, relation, inverse, *bound):
        """`add`, of the property and of the one that is its inverse by another name (itself, where it is symmetric)."""
        index, (relation, inverse) = self.index, self.property(relation, inverse)
        iri = rdf.OWL + "inverseOf"
        others = [*index.all(relation, iri), *index.subjects.get((iri, relation), ())]
        others += [relation] * index.has_type(relation, rdf.OWL + "SymmetricProperty")
        self.add(relation, inverse, *bound)
        for other in dict.fromkeys(each for each in others if each.startswith("<")):
            self.add(other, not inverse, *bound)

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
        self.visited.add(value)
        relation, inverse = self.property(relation)
        least, most, exactly, low, top, just = (index.count(value, owl + n, where) for n in CARDINALITIES + QUALIFIED)
        lower, upper = _largest(least, exactly, low, just), _smallest(most, exactly)
        if any(self.says(value, name) for name in AT_LEAST_ONE):
            lower = _largest(lower, 1)
        if f"<{owl}Nothing>" in index.all(value, owl + "allValuesFrom"):
            upper = 0
        top = _smallest(top, just)
        if top is not None:
            if self.holds_for_all(value, relation, inverse):
                upper = _smallest(upper, top)
            else:
                self.unread[
                    f"qualified maximum of {self.names.name(relation)}, whose values may be of other classes"
                ] += 1
        if lower is not None or upper is not None:
            self.add_both_ways(relation, inverse, lower, upper, kind, node)

    def says(self, restriction, name):
        """Whether a restriction says this, which false takes back (of owl:hasSelf)."""
        values = self.index.all(restriction, rdf.OWL + name)
        return any(name != "hasSelf" or re.match('"(true|1)"', value) for value in values)

    def holds_for_all(self, restriction, relation, inverse):
        """Whether all values of the property are of the classes, or datatypes, that a qualified restriction counts."""
        index, owl = self.index, rdf.OWL
        kinds = [*index.all(restriction, owl + "onClass"), *index.all(restriction, owl + "onDataRange")]
        every = {f"<{owl}Thing>"}
        if index.has_type(relation, owl + "DatatypeProperty"):
            every.add(f"<{rdf.RDFS}Literal>")
        known = index.ranges(relation, inverse)
        return bool(kinds) and all(k in every or any(index.within(each, k) for each in known) for k in kinds)


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
