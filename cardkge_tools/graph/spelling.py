"""Names as people write them: names that look the same, words of a header, and how a name is found."""

import collections
import contextlib
import difflib
import functools
import os
import unicodedata

import numpy as np

from cardkge import CardkgeError
from cardkge_tools.graph.rdf import Prefixes
from cardkge_tools.shell.terminal import LONGEST, brief, shown, warn

HEADER_WORDS = (
    "head h relation r rel tail t subject subj s predicate pred p property object obj o source src from target dst to"
    " edge label type node1 node2 entity entity1 entity2 relationship start end subject_id predicate_id object_id"
)


def plain_form(name):
    """A name in NFC, without white space at its ends: names that look the same have the same form."""
    return unicodedata.normalize("NFC", name).strip()


def look_alikes(names):
    """Lists of names that share a plain form, in order."""
    names = list(names)

    def form_of(name):
        return name.strip() if name.isascii() else plain_form(name)

    # of two names that look the same, one differs from its plain form
    forms = {form for name in names if (form := form_of(name)) != name}
    groups = collections.defaultdict(list)
    for name in names if forms else ():
        if (form := form_of(name)) in forms:
            groups[form].append(name)
    return [group for group in groups.values() if len(group) > 1]


def counted_look_alikes(entities, relations):
    """Names that look the same but are spelt differently, for JSON: of "entities" and of "relations" the number of
    such names, the number of their plain forms, and the first group of them or None."""
    groups = {"entities": look_alikes(entities), "relations": look_alikes(relations)}
    return {
        what: {"names": sum(map(len, each)), "forms": len(each), "example": each[0] if each else None}
        for what, each in groups.items()
    }


def look_alike_warnings(entities, relations):
    """Warnings of entities, and of relations, that look the same but are spelt differently."""
    return [
        f"{what} that differ in Unicode form or outer spaces alone: {each['names']} names, {each['forms']} when written"
        f" alike, such as {' and '.join(brief(ascii(name)) for name in each['example'][:2])}; they are kept apart"
        for what, each in counted_look_alikes(entities, relations).items()
        if each["names"]
    ]


def is_header(fields):
    """Whether three fields are words that name columns."""
    words = [field.strip().strip("\"'#:").lower() for field in fields]
    return set(words) <= set(HEADER_WORDS.split()) and len(set(words)) == 3


def first_lines_warnings(splits, names, others=()):
    """A warning of first lines that look like a header: words for columns, or names that no other line has.

    splits: a dict of file or split to its triples (n, 3), in the order of the lines. others: more triples of the graph.
    names: (names of entities, names of relations), by id."""
    firsts = {split: triples[0].tolist() for split, triples in splits.items() if len(triples) > 1}
    rest = [triples[1:] if split in firsts else triples for split, triples in splits.items()] + list(others)
    found = []
    for split, (h, r, t) in firsts.items():
        unique = len(splits[split]) > 3 and h != t and not any(_has(part, h, r, t) for part in rest)
        if unique or is_header([names[0][h], names[1][r], names[0][t]]):
            found.append(split)
    if not found:
        return []
    h, r, t = firsts[found[0]]
    line = ", ".join(shown(names[kind][i], quoted=True) for kind, i in ((0, h), (1, r), (0, t)))
    remedy = "remove it, or use `cardkge import FILE --header`"
    return [f"the first line of {', '.join(found)} looks like a header ({line}), but is read as a triple; {remedy}"]


def _has(triples, head, relation, tail):
    """Whether one of these ids is in the triples."""
    return (triples[:, 1] == relation).any() or np.isin(triples[:, ::2], (head, tail)).any()


class Known:
    """The names of a graph that are of one kind ("entity", "relation" or "class"), found by other spellings too.

    prefixes: of the IRIs that the names stand for."""

    def __init__(self, names, prefixes, kind):
        self.names, self.prefixes, self.kind = names, prefixes, kind

    @functools.cached_property
    def _set(self):
        return set(self.names)

    @functools.cached_property
    def _by_term(self):
        return {self.prefixes.term(name): name for name in self.names}

    @functools.cached_property
    def _by_form(self):
        found = collections.defaultdict(list)
        for term, name in self._by_term.items():
            for form in {plain_form(term), plain_form(name)}:
                found[form].append(name)
        return found

    def find(self, name):
        """(the graph's name, None or a warning), or (None, None) for an unknown name.

        A name is found as it is, as the same IRI, short or whole, or, with a warning, by a `plain_form` of one name."""
        if name in self._set:
            return name, None
        term = self.prefixes.term(name)
        if term in self._by_term:
            return self._by_term[term], None
        alike = self._by_form.get(plain_form(name)) or self._by_form.get(plain_form(term)) or ()
        if len(alike) != 1:
            return None, None
        return alike[0], f"{self.kind} {brief(name)!a} is not in the data; {brief(alike[0])!a}, which looks alike, is"

    def fault(self, name):
        """The message for an unknown name; it proposes similar ones."""
        if self.kind == "class" and not self.names:
            return f"class {shown(name, True)}, but the data set has no types.tsv, which says the classes of entities"
        near = difflib.get_close_matches(name, self.names, 3) if len(name) <= LONGEST else ()
        hint = f"; did you mean {', '.join(shown(each, True) for each in near)}?" if near else ""
        if self.kind == "relation" and not near:
            hint = "; `data show NAME` lists them"
        where = " (types.tsv)" if self.kind == "class" else ""
        expected = f"expected one of the data set's {len(self.names):,}"
        return f"unknown {self.kind} {shown(name, True)}; {expected}{where}{hint}"


def id_of(names, name, kind, prefixes=None):
    """The id of a name that the user gave, as `Known` finds it. Raises CardkgeError for an unknown name."""
    # where the locale is not UTF-8, Python has decoded the command line in another way
    with contextlib.suppress(UnicodeEncodeError):  # the locale cannot encode it, so it did not come from there
        name = os.fsencode(name).decode("utf-8", "replace")
    if name in names:
        return names.index(name)
    known = Known(names, prefixes or Prefixes(), kind)
    same, note = known.find(name)
    if same is None:
        raise CardkgeError(known.fault(name))
    if note:
        warn(note)
    return names.index(same)
