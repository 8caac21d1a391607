"""Names as people write them: which look the same, and how one is found."""

import collections
import contextlib
import difflib
import os
import unicodedata

from cardkge import CardkgeError
from cardkge_tools.shell.terminal import LONGEST, brief, shown, warn

HEADER_WORDS = (
    "head h relation r rel tail t subject subj s predicate pred p property object obj o source src from target dst to"
    " edge label type node1 node2 entity entity1 entity2 relationship start end subject_id predicate_id object_id"
)


def plain_form(name):
    """The form in which names that look the same are the same: NFC, without white space at the ends."""
    return unicodedata.normalize("NFC", name).strip()


def look_alikes(names):
    """Lists of names that have one plain form, in order; names with one spelling are in none."""
    names = list(names)

    def form_of(name):
        return name.strip() if name.isascii() else plain_form(name)

    # of two that look the same one is no plain form
    forms = {form for name in names if (form := form_of(name)) != name}
    groups = collections.defaultdict(list)
    for name in names if forms else ():
        if (form := form_of(name)) in forms:
            groups[form].append(name)
    return [group for group in groups.values() if len(group) > 1]


def counted_look_alikes(entities, relations):
    """What is said of names that look the same but are spelt differently, for JSON: of "entities" and "relations" the
    number of such names, of their plain forms, and an example, the first group, or None."""
    groups = {"entities": look_alikes(entities), "relations": look_alikes(relations)}
    return {
        what: {"names": sum(map(len, each)), "forms": len(each), "example": each[0] if each else None}
        for what, each in groups.items()
    }


def look_alike_warnings(entities, relations):
    """A sentence for entities, and one for relations, that look the same but are spelt differently."""
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


def find_name(names, name, kind):
    """(id, note) of a name. Where it is spelt in another Unicode form or with other outer spaces it is found all the
    same, if there is one such name, and the note says so; else note is None. CardkgeError for an unknown name, which
    proposes similar ones."""
    # where the locale is not UTF-8, Python has read the argument's bytes in another way
    with contextlib.suppress(UnicodeEncodeError):  # a name that this locale has no bytes for is of a file, or whole
        name = os.fsencode(name).decode("utf-8", "replace")
    if name in names:
        return names.index(name), None
    form = plain_form(name)
    alike = [i for i, known in enumerate(names) if plain_form(known) == form]
    if len(alike) == 1:
        return alike[0], f"{kind} {brief(name)!a} is not in the data; {names[alike[0]]!a}, which looks alike, is"
    near = difflib.get_close_matches(name, names, 3) if len(name) <= LONGEST else []
    hint = (
        f"did you mean {', '.join(map(shown, near))}?"
        if near
        else "`data show NAME` lists the relations, with examples"
    )
    raise CardkgeError(f"{kind} {shown(name, quoted=True)} is unknown to the run; {hint}")


def found(names, name, kind, prefixes=None):
    """The id of a name that the user gave, perhaps as the IRI that its short form stands for by these prefixes; a
    warning where it is spelt otherwise there."""
    iri = prefixes.expand(name) if prefixes and name not in names else None
    short = prefixes.shorten(iri) if iri else None
    if short in names:
        return names.index(short)
    position, note = find_name(names, name, kind)
    if note:
        warn(note)
    return position
