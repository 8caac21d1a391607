"""Bounds to RDF: SHACL shapes, or OWL restrictions, in Turtle."""

import collections
import math
import re

from cardkge_tools.graph import rdf


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
