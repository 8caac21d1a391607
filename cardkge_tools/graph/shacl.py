"""Bounds in RDF (extra `rdf`): SHACL shapes and OWL axioms, read from files and written as Turtle.

OWL's own reading is wider than ours: in OWL two names may stand for one thing; here each name is a thing of its own."""

import collections
import math
import re
from dataclasses import replace

from cardkge import CardkgeError
from cardkge_tools.graph import rdf
from cardkge_tools.graph.bounds import Bound, tightest
from cardkge_tools.graph.spelling import Known

COUNTS = "minCount", "maxCount", "qualifiedMinCount", "qualifiedMaxCount"
TARGETS = "targetClass", "targetNode", "targetSubjectsOf", "targetObjectsOf"
INNER = "property", "node", "and"  # shapes that must all hold
CHOICES = "or", "xone", "not"  # shapes that need not hold; they are not read
CARDINALITIES = "minCardinality", "maxCardinality", "cardinality"
QUALIFIED = "minQualifiedCardinality", "maxQualifiedCardinality", "qualifiedCardinality"
AT_LEAST_ONE = "someValuesFrom", "hasValue", "hasSelf"
SCHEMA = (rdf.SUBCLASS, rdf.RDFS + "range", rdf.RDFS + "domain")


class Index:
    """The triples of a small RDF file, by subject and property. base: the IRI that relative IRIs are relative to."""

    def __init__(self, path, base=None):
        triples, self.prefixes = rdf.read_graph(path, base=base)
        self.path = path
        self.relative = [] if base else rdf.relative_notes(dict.fromkeys(term for triple in triples for term in triple))
        self.objects = collections.defaultdict(list)  # (subject, property) -> objects
        self.above = collections.defaultdict(list)  # object -> (subject, property) pairs
        for subject, predicate, value in triples:
            self.objects[subject, predicate[1:-1]].append(value)
            self.above[value].append((subject, predicate[1:-1]))
        self.nodes = list(dict.fromkeys(subject for subject, _, _ in triples))
        self.schema = [triple for triple in triples if triple[1][1:-1] in SCHEMA]
        self.learn(())

    def learn(self, schema):
        """Add another file's schema, (subject, property, object) terms; blank nodes, whose labels hold there, apart."""
        for subject, predicate, value in schema:
            values = self.objects[subject, predicate[1:-1]]
            if value not in values and not any(term.startswith("_:") for term in (subject, value)):
                values.append(value)
        subclass = [(s, value) for (s, iri), values in self.objects.items() if iri == rdf.SUBCLASS for value in values]
        self._above = rdf.superclasses(subclass)

    def all(self, subject, iri):
        return self.objects.get((subject, iri), [])

    def subjects(self, iri, value):
        return [subject for subject, each in self.above.get(value, ()) if each == iri]

    def one(self, subject, iri):
        """The value of a property that may have one, or None."""
        values = self.all(subject, iri)
        if len(values) > 1:
            several = " and ".join(f"{value:.60}" for value in values[:2])
            what = rdf.Prefixes(rdf.WELL_KNOWN | self.prefixes).shorten(iri)
            owner = "a nameless node" if subject.startswith("_:") else subject
            raise CardkgeError(f"{self.path}, {owner}: {what} has {len(values)} values, {several}; keep one of them")
        return values[0] if values else None

    def has_type(self, subject, *iris):
        return any(f"<{iri}>" in self.all(subject, rdf.TYPE) for iri in iris)

    def items(self, node):
        """The members of an RDF list."""
        found, seen = [], set()
        while node is not None and node != f"<{rdf.RDF}nil>" and node not in seen:
            seen.add(node)
            found += self.all(node, rdf.RDF + "first")
            node = self.one(node, rdf.RDF + "rest")
        return found

    def count(self, subject, iri, where):
        """The number that a property has, or None."""
        value = self.one(subject, iri)
        if value is None:
            return None
        number = re.match(r'"\+?([0-9]{1,15})"', value)
        if not number:
            raise CardkgeError(f"{where}: {iri.rpartition('#')[2]} is {value:.60}; expected a number of at least 0")
        return int(number[1])

    def is_true(self, subject, iri):
        return re.match('"(true|1)"', self.one(subject, iri) or "") is not None

    def within(self, kind, other):
        """Whether a class is another, or below it."""
        return kind == other or other in self._above.get(kind, ())

    def ranges(self, relation, inverse):
        """The classes of all values of the relation (of all its subjects, if inverse), as the file states them."""
        return self.all(relation, rdf.RDFS + ("domain" if inverse else "range"))


def read_rdf(path):
    """Read the bounds in a file of SHACL shapes or OWL axioms, or in its Index.

    Returns (list of Bound whose names are terms, notes). The notes say which numbers of the file are not read.

    SHACL: the counts of property shapes whose path is a property or the inverse of one, through sh:property, sh:node
    and sh:and. A shape's target is a class (sh:targetClass, or the shape is itself a class), a node, or the subjects
    (of an inverse path the objects) of the same property, which is every subject.
    OWL: functional and inverse functional properties; restrictions that are above a class or equal to it, in
    intersections too, where owl:Thing stands for every subject.
    A qualified minimum is a lower bound. A qualified maximum is an upper bound only where all values are of that class
    (rdfs:range, or sh:class in the same shape).
    Raises CardkgeError where two bounds of the same relation and class leave no whole number."""
    reader = _Reader(path if isinstance(path, Index) else Index(path))
    reader.read_shacl()
    reader.read_owl()
    return renamed(reader.found.values(), reader.names.term), reader.notes()


class _Reader:
    """Collects the bounds in an Index, under names, for the messages."""

    def __init__(self, index):
        self.index, self.path = index, index.path
        self.names = rdf.Prefixes(rdf.WELL_KNOWN | index.prefixes)
        self.found = {}  # key -> Bound
        self.visited = set()  # shapes and restrictions that were read, or that a note names
        self.unread = collections.Counter()

    def notes(self):
        several = [what + (f" ({number} times)" if number > 1 else "") for what, number in self.unread.items()]
        return [f"{self.path}: {what}" for what in self.index.relative + several]

    def label(self, node):
        return "a nameless shape" if node.startswith("_:") else self.names.name(node)

    def where(self, node):
        return f"{self.path}, {self.label(node)}"

    def add(self, node, numbers, relation, inverse, kind=None, subject=None):
        """Add the bound that a node states, of a class, a subject, or every subject. numbers: lower, upper, or None."""
        lower, upper = numbers[0] or 0, math.inf if numbers[1] is None else numbers[1]
        if lower or upper < math.inf:
            relation, kind, subject = (term and self.names.name(term) for term in (relation, kind, subject))
            new = Bound(relation, float(lower), float(upper), inverse, kind, self.where(node), subject)
            self.found[new.key] = tightest(self.found.get(new.key, new), new)

    def skip_maximum(self, what, relation):
        self.unread[f"{what} of {self.names.name(relation)}, whose values may be of other classes"] += 1

    # SHACL

    def has(self, node, *names):
        """Whether a node has one of these properties of SHACL."""
        return any(self.index.all(node, rdf.SHACL + name) for name in names)

    def read_shacl(self):
        shapes = [node for node in self.index.nodes if self.has(node, "path", *INNER, *CHOICES)]
        inner = {each for node in shapes for each in self.parts(node)}
        for node in shapes:
            if targets := self.targets(node):
                self.shape(node, targets)
            elif node not in inner or self.has(node, "target"):
                self.visited |= self.within(node)
                label = self.label(node) if node.startswith("_:") else f"shape {self.label(node)}"
                self.unread[f"{label} has no target that is read"] += 1
        for node in self.index.nodes:
            if node not in self.visited and self.has(node, *COUNTS):
                path = self.index.one(node, rdf.SHACL + "path") or node
                self.unread[f"counts of {self.names.name(path)} that hold for the values of a property only"] += 1

    def parts(self, node, names=(*INNER, *CHOICES)):
        """The shapes that a shape names by these properties."""
        values = [(name, value) for name in names for value in self.index.all(node, rdf.SHACL + name)]
        return [each for name, v in values for each in (self.index.items(v) if name in ("and", "or", "xone") else [v])]

    def within(self, node):
        """The shape, and every shape that it names, directly or not."""
        found, stack = set(), [node]
        while stack:
            if (each := stack.pop()) not in found:
                found.add(each)
                stack += self.parts(each)
        return found

    def targets(self, node):
        """The targets of a shape: (one of TARGETS, term)."""
        found = [(name, term) for name in TARGETS for term in self.index.all(node, rdf.SHACL + name)]
        if self.index.has_type(node, rdf.RDFS + "Class", rdf.OWL + "Class"):
            found.append(("targetClass", node))
        if self.has(node, "target"):
            self.unread[f"sh:target is not read ({self.label(node)})"] += 1
        return found

    def shape(self, node, targets, above=()):
        """Read a shape, and the shapes that it names, for these targets. above: the shapes that name it."""
        off = self.index.is_true(node, rdf.SHACL + "deactivated")
        self.visited |= self.within(node) if off else {node}
        if off or node in above:
            return
        if self.has(node, "path"):
            self.property_shape(node, targets)
            return
        for inner in self.parts(node, INNER):
            self.shape(inner, targets, (*above, node))
        for name in CHOICES:
            members = {each for member in self.parts(node, (name,)) for each in self.within(member)}
            if any(self.has(each, *COUNTS) for each in members):
                self.visited |= members
                self.unread[f"sh:{name} is not read ({self.label(node)})"] += 1

    def property_shape(self, node, targets):
        index, sh = self.index, rdf.SHACL
        path = index.one(node, sh + "path")
        back = index.one(path, sh + "inversePath")
        relation, inverse = (path, False) if back is None else (back, True)
        lower, upper, low, up = (index.count(node, sh + name, self.where(node)) for name in COUNTS)
        if not self.has(node, *COUNTS):
            return
        if not relation.startswith("<"):
            self.unread["paths other than a property or its inverse are not read"] += 1
            return
        if up is not None:
            shape = index.one(node, sh + "qualifiedValueShape")
            kinds = index.all(shape, sh + "class") if shape else []
            known = [*index.ranges(relation, inverse), *self.sibling_classes(node, path)]
            if kinds and all(any(index.within(kind, each) for kind in known) for each in kinds):
                upper = _smallest(upper, up)
            else:
                self.skip_maximum("sh:qualifiedMaxCount", relation)
        bound = node, (_largest(lower, low), upper), relation, inverse
        for target, term in targets:
            if target == "targetClass":
                self.add(*bound, kind=term)
            elif target == "targetNode":
                self.add(*bound, subject=term)
            elif term == relation and (target == "targetObjectsOf") == inverse:
                self.add(*bound)
            else:
                name, other = self.names.name(term), self.names.name(relation)
                self.unread[f"sh:{target} {name} is not read as the target of counts of {other}"] += 1

    def sibling_classes(self, node, path):
        """sh:class of the property shapes with this path in the same node shape, this one too."""
        index, sh = self.index, rdf.SHACL
        found = list(index.all(node, sh + "class"))
        for parent in index.subjects(sh + "property", node):
            for other in index.all(parent, sh + "property"):
                same = path.startswith("<") and index.one(other, sh + "path") == path
                if same and not index.is_true(other, sh + "deactivated"):
                    found += index.all(other, sh + "class")
        return found

    # OWL

    def read_owl(self):
        index, owl = self.index, rdf.OWL
        for name, inverse in (("FunctionalProperty", False), ("InverseFunctionalProperty", True)):
            for relation in index.subjects(rdf.TYPE, f"<{owl}{name}>"):
                self.add_both_ways(relation, (0, 1), relation, inverse)
        for node in index.nodes:
            if node.startswith("<"):
                kind = None if node == f"<{owl}Thing>" else node
                for value in index.all(node, rdf.SUBCLASS) + index.all(node, owl + "equivalentClass"):
                    self.class_axiom(kind, value, node)
                for value in index.all(node, owl + "intersectionOf"):
                    for member in index.items(value):
                        self.class_axiom(node, member, node)
        for node in index.nodes:
            numbers = [n for n in (*CARDINALITIES, *QUALIFIED, *AT_LEAST_ONE) if index.all(node, owl + n)]
            if numbers and node not in self.visited and index.all(node, owl + "onProperty"):
                relation, _ = self.property(index.one(node, owl + "onProperty"))
                self.unread[f"owl:{numbers[0]} of {self.names.name(relation)}{self.container(node)} is not read"] += 1

    def container(self, node):
        """Where a nameless class stands, such as " in owl:unionOf (ex:person)"."""
        inside, seen = "", {node}
        while node.startswith("_:"):
            above = self.index.above.get(node, ())
            subject, iri = next(((s, iri) for s, iri in above if s not in seen), (None, None))
            if subject is None:
                return inside
            if iri not in (rdf.RDF + "first", rdf.RDF + "rest", rdf.SUBCLASS, rdf.OWL + "equivalentClass"):
                inside = inside or f" in {self.names.shorten(iri)}"
            seen.add(node := subject)
        return f"{inside} ({self.names.name(node)})"

    def property(self, relation, inverse=False):
        """(the property, whether its inverse is meant)."""
        back = self.index.one(relation, rdf.OWL + "inverseOf") if relation.startswith("_:") else None
        return (relation, inverse) if back is None else (back, not inverse)

    def add_both_ways(self, node, numbers, relation, inverse, kind=None):
        """`add`, for the property and for those that are its inverse by another name (itself, if it is symmetric)."""
        index, (relation, inverse) = self.index, self.property(relation, inverse)
        iri = rdf.OWL + "inverseOf"
        others = index.all(relation, iri) + index.subjects(iri, relation)
        others += [relation] * index.has_type(relation, rdf.OWL + "SymmetricProperty")
        self.add(node, numbers, relation, inverse, kind)
        for other in dict.fromkeys(each for each in others if each.startswith("<")):
            self.add(node, numbers, other, not inverse, kind)

    def class_axiom(self, kind, value, node):
        """Every member of the class `kind` is a `value`, as the node states."""
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
        some = index.all(value, owl + "someValuesFrom") or index.all(value, owl + "hasValue")
        some = some or index.is_true(value, owl + "hasSelf")
        none = f"<{owl}Nothing>" in index.all(value, owl + "allValuesFrom")
        lower, upper = _largest(least, exactly, low, just, 1 if some else None), 0 if none else _smallest(most, exactly)
        top = _smallest(top, just)
        if top is not None:
            if self.counts_all(value, relation, inverse):
                upper = _smallest(upper, top)
            else:
                self.skip_maximum("qualified maximum", relation)
        self.add_both_ways(node, (lower, upper), relation, inverse, kind)

    def counts_all(self, restriction, relation, inverse):
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


def renamed(bounds, name):
    """The bounds, with name(old) for each name of a relation, a class or an entity."""
    parts = ("relation", "kind", "subject")
    return [replace(bound, **{part: (old := getattr(bound, part)) and name(old) for part in parts}) for bound in bounds]


def of_graph(bounds, graph, prefixes):
    """(the bounds with the graph's names, notes). Bounds on names that the graph lacks are dropped and counted."""
    parts = [("relation", graph.relations), ("class", graph.types.classes), ("entity", graph.entities or ())]
    known = [Known(names, prefixes, what) for what, names in parts]
    found, notes, dropped = [], [], ([], [], [])
    for bound in renamed(bounds, prefixes.name):
        names = bound.relation, bound.kind, bound.subject
        pairs = [(None, None) if name is None else one.find(name) for one, name in zip(known, names)]
        lost = [part for part, (same, _) in enumerate(pairs) if same is None and names[part] is not None]
        if lost:
            dropped[lost[0]].append(names[lost[0]])
            continue
        (relation, _), (kind, _), (subject, _) = pairs
        found.append(replace(bound, relation=relation, kind=kind, subject=subject))
        notes += [note for _, note in pairs if note and note not in notes]
    lacking = "relations that the graph does not have", "classes that have no member", "entities that the graph lacks"
    for what, names in zip(lacking, dropped):
        if names:
            several = list(dict.fromkeys(names))
            some = ", ".join(several[:3] + ["..."] * (len(several) > 3))
            notes.append(f"{len(names)} of {len(bounds)} bounds dropped, on {what} ({some})")
    return found, notes


# --- writing


def turtle_text(bounds, prefixes=None, standard="shacl"):
    """Bounds as Turtle, in SHACL shapes or OWL axioms (standard="owl"); read back they are the same bounds.

    A bound of every subject is a shape whose target is the subjects (objects, if inverse) of the property itself, or a
    restriction of owl:Thing. Bounds that are not whole numbers are rounded inwards."""
    prefixes = prefixes or rdf.Prefixes()
    ours = rdf.Prefixes(prefixes.namespaces)
    standards = ("sh",) if standard == "shacl" else ("owl", "rdfs")
    standards = [ours.add(prefix, rdf.WELL_KNOWN[prefix]) + ":" for prefix in standards]
    names = {name for b in bounds for name in (b.relation, b.kind, b.subject) if name is not None}
    if any(prefixes.expand(name) is None for name in names):
        ours.add("name", rdf.NAME_OF_NOTHING)
    turtle = {name: _turtle(prefixes.term(name), ours) for name in names}
    lines = [f"@prefix {prefix}: <{namespace}> .\n" for prefix, namespace in ours.namespaces.items()]
    return "".join([*lines, *(_shacl if standard == "shacl" else _owl)(renamed(bounds, turtle.get), *standards)])


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


def _shacl(bounds, sh):
    groups = collections.defaultdict(list)  # the target, written out -> bounds
    for bound in bounds:
        if bound.kind is not None:
            target = f"targetClass {bound.kind}"
        elif bound.subject is not None:
            target = f"targetNode {bound.subject}"
        else:
            target = f"target{'Objects' if bound.inverse else 'Subjects'}Of {bound.relation}"
        groups[target].append(bound)
    for target, members in groups.items():
        parts = [f"\n[] a {sh}NodeShape ;\n    {sh}{target}"]
        for bound in members:
            lower, upper = _whole(bound)
            path = f"[ {sh}inversePath {bound.relation} ]" if bound.inverse else bound.relation
            counts = [f" ; {sh}minCount {lower}"] * (lower > 0) + [f" ; {sh}maxCount {upper}"] * (upper is not None)
            parts.append(f" ;\n    {sh}property [ {sh}path {path}{''.join(counts)} ]")
        yield "".join([*parts, " .\n"])


def _owl(bounds, owl, rdfs):
    integer = "<http://www.w3.org/2001/XMLSchema#nonNegativeInteger>"
    for bound in bounds:
        lower, upper = _whole(bound)
        kind = bound.kind or f"{owl}Thing"
        path = f"[ {owl}inverseOf {bound.relation} ]" if bound.inverse else bound.relation
        counts = [("minCardinality", lower)] * (lower > 0) + [("maxCardinality", upper)] * (upper is not None)
        for what, number in [("cardinality", lower)] if lower == upper else counts:
            restriction = f'[ a {owl}Restriction ; {owl}onProperty {path} ; {owl}{what} "{number}"^^{integer} ]'
            yield f"\n{kind} {rdfs}subClassOf {restriction} .\n"
