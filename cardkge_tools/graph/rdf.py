"""RDF: files, which pyoxigraph parses (extra `rdf`), and names for terms.

A *term* is written as in N-Triples: `<iri>`, `_:label` or a literal. A *name* is what the files of a data set hold: an
IRI, short (`ex:anna`) or whole, `_:label`, or a literal as in N-Triples. `Prefixes` turns one into the other."""

import codecs
import collections
import gzip
import json
import os
import re
import zlib
from pathlib import Path
from urllib.parse import unquote

import click

from cardkge import CardkgeError
from cardkge_tools.shell.files import is_packed, line_error, read_fields, refuse_utf_16, replace_file, without_gz

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDFS = "http://www.w3.org/2000/01/rdf-schema#"
OWL = "http://www.w3.org/2002/07/owl#"
SHACL = "http://www.w3.org/ns/shacl#"
TYPE = RDF + "type"
SUBCLASS = RDFS + "subClassOf"
WELL_KNOWN = {"rdf": RDF, "rdfs": RDFS, "owl": OWL, "sh": SHACL}  # known without a file

FORMATS = {  # ending of a file's name -> pyoxigraph's name of the format; the usual ending first
    ".nt": "N_TRIPLES", ".ntriples": "N_TRIPLES", ".nq": "N_QUADS", ".nquads": "N_QUADS",
    ".ttl": "TURTLE", ".turtle": "TURTLE", ".trig": "TRIG",
    ".rdf": "RDF_XML", ".xml": "RDF_XML", ".owl": "RDF_XML", ".jsonld": "JSON_LD", ".json": "JSON_LD",
}  # fmt: skip
LINE_FORMATS = ("N_TRIPLES", "N_QUADS")  # in which every blank node has a label
BLOCK = 1 << 18  # bytes of statements at a time
NAME_OF_NOTHING = "urn:cardkge:"  # begins the IRI of a name that is not an IRI (see Prefixes.term)

_LITERAL = re.compile(r'("(?:[^"\\]|\\.)*"(?:@[^ ]+|\^\^<[^>]*>)?)(?: (.+))?')
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=.)", re.DOTALL)
_NEVER = r"\x00-\x20\x7f-\x9f<>\"{}|^`\\\ufdd0-\ufdef\ufff0-\uffff" + "".join(
    f"\\U{plane:04x}fffe\\U{plane:04x}ffff" for plane in range(1, 15)
)  # the last two code points of a plane are no characters
_PRIVATE = r"\ue000-\uf8ff\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
# [ and ] are for the number of a host, private characters for a query, and % for two digits (RFC 3987)
_NOT_IN_IRI = re.compile(rf"[{_NEVER}]|(?<!//)\[|^[^\[]*\]|%(?![0-9A-Fa-f]{{2}})|^[^?]*[{_PRIVATE}]")
_NOT_AT_ITS_END = re.compile(rf"[{_NEVER}{_PRIVATE}\[\]%#?/]")
_PREFIX = re.compile(r"[^\s:<>\"{}|^`\\/]*")


def load_pyoxigraph():
    """The module. Raises CardkgeError, naming the extra, where it is not installed."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise CardkgeError(f"reading RDF needs pyoxigraph: pip install -e '.[rdf]' ({error})") from error
    return pyoxigraph


def format_of(path):
    """pyoxigraph's name of the format of a file by the ending of its name (`.gz` aside); None for another ending."""
    return FORMATS.get(os.path.splitext(without_gz(path).lower())[1])


# --- statements


class _Blocks:
    """A file for pyoxigraph to write to, which calls consume(text) with whole lines, BLOCK bytes or more at a time."""

    def __init__(self, consume):
        self.consume, self.parts, self.size = consume, [], 0

    def write(self, part):
        self.parts.append(bytes(part))
        self.size += len(part)
        if self.size >= BLOCK:
            self.hand_on()
        return len(part)

    def hand_on(self):
        whole, newline, rest = b"".join(self.parts).rpartition(b"\n")
        self.parts, self.size = [rest], len(rest)
        if newline:
            self.consume((whole + newline).decode())

    def flush(self):
        pass


def read_statements(path, consume, kind=None, progress=None, base=None):
    """Parse an RDF file and pass its statements on as text, in the order of the file and in little memory.

    consume(block) is called with whole lines of canonical N-Quads: one space between terms, ` .` at the end, no
    comments, no blank lines. kind: a value of FORMATS; None takes it from the file's name. progress(done, total) is
    called with bytes of the file. base: the IRI that relative IRIs are relative to; None takes the place of the file.
    Returns the prefixes that the file declares, a dict prefix -> namespace.
    Raises CardkgeError, naming file and line, for a file that is not in the format or cannot be read, for a base that
    is not an IRI, and where pyoxigraph is missing."""
    oxigraph = load_pyoxigraph()
    kind = kind or format_of(path)
    if kind is None:
        raise CardkgeError(f"{path}: unknown ending of an RDF file; expected one of {', '.join(FORMATS)}")
    if base is not None and (not _SCHEME.match(base) or _NOT_IN_IRI.search(base)):
        raise CardkgeError(f"--base {base}: expected an IRI, such as http://example.org/")
    form, start = getattr(oxigraph.RdfFormat, kind), b""
    try:
        with open(path, "rb", buffering=1 << 20) as raw:
            total = os.fstat(raw.fileno()).st_size
            source = gzip.GzipFile(fileobj=raw) if is_packed(path) else raw
            start = source.peek(1 << 10)[: 1 << 10]
            refuse_utf_16(path, start)
            if start.startswith(codecs.BOM_UTF8):
                source.read(len(codecs.BOM_UTF8))

            def consume_and_report(block):
                consume(block)
                if progress:
                    progress(raw.tell(), total)

            base = None if kind in LINE_FORMATS else base or Path(path).absolute().as_uri()
            parser = oxigraph.parse(source, form, base_iri=base)
            blocks = _Blocks(consume_and_report)
            oxigraph.serialize(parser, blocks, oxigraph.RdfFormat.N_QUADS)
            blocks.hand_on()
            prefixes = dict(parser.prefixes)
        return prefixes or _other_prefixes(path, kind)
    except SyntaxError as error:  # pyoxigraph's: what the file says is not in the format
        reason = " ".join(str(error.msg).split())
        if "LoadDocumentCallback" in reason:
            reason = "its @context is on the web and is not loaded; write the context into the file"
        name = kind.replace("_", "-")
        raise CardkgeError(f"{path}:{error.lineno or 1}: not {name}: {reason}{_looks_like(start, kind)}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise CardkgeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


_BEGINNINGS = (  # how a file begins, the format that begins so, the usual ending of its name
    (r"<!doctype html|<html", "a web page", None),
    (r"<\?xml|<!--|<!doctype|<rdf:RDF", "RDF/XML", ".rdf"),
    (r"[{\[]\s*(?:[\"{}\[\]]|$)", "JSON-LD", ".jsonld"),
    (r"@prefix|@base|prefix\s+\S*:|base\s*<", "Turtle", ".ttl"),
)


def format_like(text, advice):
    """The end of a message about a file in another format: the format that its text begins like, or "".

    advice(ending): what to do with a file of the format with this ending; "" where that is the expected format."""
    text = re.sub(r"\A(?:\s*#[^\n]*\n)*\s*", "", text)
    for pattern, name, ending in _BEGINNINGS:
        if re.match(pattern, text, re.IGNORECASE):
            how = "download the data itself" if ending is None else advice(ending)
            return f"; it looks like {name}: {how}" if how else ""
    return ""


def _looks_like(start, kind):
    def advice(ending):
        fits = FORMATS[ending] == kind or (ending, kind) == (".ttl", "TRIG")
        return "" if fits else f"end its name in {ending}, or import it with --format {ending[1:]}"

    return format_like(start.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"), advice)


def relative_notes(*names):
    """[a warning], where lists of terms hold IRIs of files, as relative IRIs become; else []."""
    local = [term[1:-1] for terms in names for term in terms if term.startswith("<file:")]
    other = "in another place the same data has other names; --base IRI says what relative IRIs are relative to"
    return [f"{len(local):,} names are relative IRIs, or IRIs of files, such as {local[0]}: {other}"] if local else []


def _other_prefixes(path, kind):
    """Prefixes that the parser does not report: of RDF/XML, and of the objects in a list of JSON-LD."""

    def dicts(value):
        return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]

    with (gzip.open if is_packed(path) else open)(path, "rb") as file:
        head = file.read(1 << 16).decode("utf-8-sig", "replace")
        if kind == "RDF_XML":
            found = re.findall(r"""xmlns(?::([^\s=]+))?\s*=\s*["']([^"'&]+)["']""", head)
            return {prefix: namespace for prefix, namespace in found if prefix != "xml"}
        if kind != "JSON_LD" or not head.lstrip().startswith("["):
            return {}
        file.seek(0)
        contexts = [each for item in dicts(json.loads(file.read())) for each in dicts(item.get("@context"))]
    pairs = [pair for each in contexts for pair in each.items()]
    return {key: text for key, text in pairs if isinstance(text, str) and text[-1:] in tuple("/#:") and key[:1] != "@"}


def terms_of(line):
    """(subject, predicate, object, graph) of a line of `read_statements`; graph is "" for the default graph."""
    subject, predicate, rest = line[:-2].split(" ", 2)
    if rest[0] == '"':
        literal, graph = _LITERAL.fullmatch(rest).groups()
        return subject, predicate, literal, graph or ""
    if rest[:2] == "<<":
        inner, _, graph = rest.rpartition(")>>")
        return subject, predicate, inner + ")>>", graph.strip()
    node, _, graph = rest.partition(" ")
    return subject, predicate, node, graph


def read_graph(path, base=None):
    """A small RDF file as (list of (subject, predicate, object) terms, prefixes), its named graphs merged."""
    triples = []

    def consume(block):
        triples.extend(terms_of(line)[:3] for line in block[:-1].split("\n"))

    return triples, read_statements(path, consume, base=base)


def superclasses(pairs):
    """A dict class -> itself and all classes above it, in order, from pairs (class, class above it), in circles too."""
    above = collections.defaultdict(list)
    for lower, upper in pairs:
        above[lower].append(upper)
    closed = {}
    for start in list(above):
        found, stack = {start: None}, [start]
        while stack:
            for upper in above.get(stack.pop(), ()):
                if upper not in found:
                    found[upper] = None
                    stack.append(upper)
        closed[start] = list(found)
    return closed


# --- names


class Prefixes:
    """Prefixes of IRIs; `shorten` and `expand` undo each other.

    An IRI becomes `prefix:rest` by the longest namespace that it begins with. Without one it stays whole, in < > if it
    could be read as a short name."""

    def __init__(self, pairs=()):
        self.namespaces = {}  # prefix -> namespace
        self._prefixes, self._lengths = {}, []  # namespace -> prefix; lengths of the namespaces, longest first
        for prefix, namespace in dict(pairs).items():
            self.add(prefix, namespace)

    def add(self, prefix, namespace):
        """Add a prefix and return its name here: a new one where the name stands for another namespace."""
        if not _PREFIX.fullmatch(prefix) or prefix == "_" or not namespace or _NOT_IN_IRI.search(namespace):
            raise CardkgeError(f"prefix {prefix!r} for {namespace!r}: expected a word and the beginning of an IRI")
        if namespace in self._prefixes:
            return self._prefixes[namespace]
        name, number = prefix, 2
        while name in self.namespaces:
            name, number = f"{prefix}{number}", number + 1
        self.namespaces[name], self._prefixes[namespace] = namespace, name
        self._lengths = sorted({len(known) for known in self._prefixes}, reverse=True)
        return name

    def shorten(self, iri):
        """The name of an IRI."""
        for length in self._lengths:
            prefix = self._prefixes.get(iri[:length])
            if prefix is not None:
                return f"{prefix}:{iri[length:]}"
        misread = iri.partition(":")[0] in self.namespaces or _SCHEME.match(iri) is None
        return f"<{iri}>" if misread else iri

    def expand(self, name):
        """The IRI of a name, or None for a blank node, a literal and any other name."""
        if name.startswith("<") and name.endswith(">") and not _NOT_IN_IRI.search(name[1:-1]):
            return name[1:-1]
        prefix, colon, rest = name.partition(":")
        if prefix == "_" or not colon or name.startswith('"'):
            return None
        if prefix in self.namespaces:
            iri = self.namespaces[prefix] + rest
        else:
            iri = name if _SCHEME.match(name) else None
        return None if iri is None or _NOT_IN_IRI.search(iri) else iri

    def name(self, term):
        """The name of a term; `term` undoes it."""
        if term.startswith(f"<{NAME_OF_NOTHING}"):
            name = unquote(term[1 + len(NAME_OF_NOTHING) : -1])
            if name and not re.search("[\t\n\r]", name) and self.term(name) == term:
                return name
        return self.shorten(term[1:-1]) if term.startswith("<") else term

    def term(self, name):
        """The N-Triples term of a name. A name that is not an IRI becomes one (`made_term`), and so does a blank node,
        for other files cannot refer to its label (a Skolem IRI: RDF 1.1 Concepts, 3.5)."""
        if is_literal(name):
            return name
        iri = self.expand(name)
        return f"<{iri}>" if iri is not None else made_term(name)


def is_literal(name):
    """Whether a name is a literal as N-Triples writes it."""
    match = _LITERAL.fullmatch(name) if name.startswith('"') else None
    return match is not None and match[2] is None


def made_term(name):
    """The term of a name that is not an IRI: what an IRI cannot hold, and %, becomes %XX of its UTF-8 bytes."""
    encoded = _NOT_AT_ITS_END.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    return f"<{NAME_OF_NOTHING}{encoded}>"


def given_prefixes(texts):
    """A dict prefix -> namespace of NAME=IRI texts; a well-known prefix needs no IRI."""
    found = {}
    for text in texts:
        name, equals, iri = text.partition("=")
        if not equals and name in WELL_KNOWN:
            iri = WELL_KNOWN[name]
        elif not equals or not iri:
            raise click.UsageError(f"--prefix {text}: expected NAME=IRI.")
        if found.get(name, iri) != iri:
            raise click.UsageError(f"--prefix {name} for the second time.")
        found[name] = iri
    return found


def read_prefixes(path):
    """The Prefixes in a `prefixes.tsv` (`prefix<TAB>namespace` a line); without a file, no prefixes."""
    prefixes = Prefixes()
    if not os.path.isfile(path):
        return prefixes
    for at, fields in read_fields(path):
        try:
            if len(fields) != 2:
                raise CardkgeError(f"expected prefix and namespace with a tab between, found {fields!r:.80}")
            if fields[0] in prefixes.namespaces:
                raise CardkgeError(f"prefix {fields[0]!r} for the second time; keep one of the lines")
            prefixes.add(*fields)
        except CardkgeError as error:
            raise line_error(path, at, fields, error) from None
    return prefixes


def prefixes_text(prefixes):
    """The text of a `prefixes.tsv`."""
    return "".join(f"{prefix}\t{namespace}\n" for prefix, namespace in prefixes.namespaces.items())


def write_prefixes(path, prefixes):
    """Write Prefixes as `read_prefixes` reads them."""
    replace_file(path, lambda file: file.write(prefixes_text(prefixes).encode()))
