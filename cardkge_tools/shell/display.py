"""How a name is shown, in a table or a message: nothing of it hides, nothing changes how its neighbours look."""

import unicodedata

LONGEST = 100  # characters of a name in a message
# They change how the text after them is shown: marks and overrides of direction, isolates, zero-width characters.
_INVISIBLE = set("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")
_UNSEEN = ("Cc", "Zl", "Zp", "Cs")  # Unicode's categories of control characters, ends of lines, half letters


def brief(text, limit=LONGEST):
    """A text of at most `limit` characters, its end cut off."""
    return text if limit is None or len(text) <= limit else text[: limit - 3] + "..."


def shown(name, quoted=False, limit=LONGEST):
    """A name for a table or a message: as it is where it is printed plainly; in quotes with escapes where it has spaces
    at its ends, control characters, or characters that are not seen and change how others are shown."""
    odd = name != name.strip() or any(
        character in _INVISIBLE or unicodedata.category(character) in _UNSEEN for character in name
    )
    if not odd:
        return repr(brief(name, limit)) if quoted else brief(name, limit)
    letters = []
    for character in brief(name, limit):
        if character in _INVISIBLE or unicodedata.category(character) in (*_UNSEEN, "Cf"):
            letters.append(ascii(character)[1:-1])
        else:
            letters.append({"\\": "\\\\", "'": "\\'"}.get(character, character))
    return "'" + "".join(letters) + "'"
