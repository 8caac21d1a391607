"""`import`: every format, its names, what is left out, and what goes wrong."""

import gzip

import numpy as np
import pytest

from cardkge import CardkgeError
from cardkge_tools.graph import rdf, sources
from cardkge_tools.graph.exchange import ImportOptions, import_graph

pytest.importorskip("pyoxigraph")

EX = "http://example.org/"
NTRIPLES = """\
# a comment

<http://example.org/anna> <http://example.org/knows> <http://example.org/Björn> .
<http://example.org/Björn>   <http://example.org/knows>\t<http://example.org/anna>.
<http://example.org/anna> <http://example.org/knows> <http://example.org/Bj\\u00F6rn> . # the same as the first
<http://example.org/anna> <http://example.org/name> "Anna \\"A.\\" <x> ."@en .
<http://example.org/anna> <http://example.org/age> "42"^^<http://www.w3.org/2001/XMLSchema#integer> .
_:someone <http://example.org/knows> <http://example.org/anna> .
"""
TURTLE = """\
@prefix ex: <http://example.org/> .
@prefix : <http://example.org/people/> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
ex:City rdfs:subClassOf ex:Place .
ex:Place rdfs:subClassOf ex:Thing, ex:City .
:anna a ex:Person ; ex:lives_in ex:paris ; ex:knows :björn, [ ex:lives_in ex:rome ] .
ex:paris a ex:City . ex:lonely a ex:Person .
:björn ex:lives_in ex:paris ; ex:name "Björn" ; ex:homepage <mailto:b@example.com> .
"""


def imported(tmp_path, name, text, bounds=(), **options):
    """(Imported, lines of triples.tsv) of one file with this text."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    result = import_graph([path], tmp_path / "out", ImportOptions(**options), bounds)
    return result, (tmp_path / "out" / "triples.tsv").read_text().splitlines()


def lines(tmp_path, name):
    return (tmp_path / "out" / name).read_text().splitlines()


def test_n_triples(tmp_path):
    result, triples = imported(tmp_path, "graph.nt", NTRIPLES)
    anna, knows, bjorn = EX + "anna", EX + "knows", EX + "Björn"
    assert triples == [f"{anna}\t{knows}\t{bjorn}", f"{bjorn}\t{knows}\t{anna}", f"_:someone\t{knows}\t{anna}"]
    assert (result.triples, result.entities, result.relations) == (3, 3, 1)
    assert result.counts == {"duplicates dropped": 1, "literals left out": 2}
    assert not (tmp_path / "out" / "types.tsv").exists() and lines(tmp_path, "prefixes.tsv") == []


def test_literals_are_kept_in_n_triples_form(tmp_path):
    _, triples = imported(tmp_path, "graph.nt", NTRIPLES, literals="keep", prefixes={"ex": EX})
    assert triples[2:4] == [
        'ex:anna\tex:name\t"Anna \\"A.\\" <x> ."@en',
        'ex:anna\tex:age\t"42"^^<http://www.w3.org/2001/XMLSchema#integer>',
    ]
    text = '<a:a> <a:p> "tab\\there\\nline" .\n'
    _, triples = imported(tmp_path / "out", "b.nt", text, literals="keep")
    assert triples == ['a:a\ta:p\t"tab\\there\\nline"']


def test_turtle_with_prefixes_classes_and_nameless_nodes(tmp_path):
    result, triples = imported(tmp_path, "graph.ttl", TURTLE)
    assert triples == [
        ":anna\tex:lives_in\tex:paris",
        ":anna\tex:knows\t:björn",
        "_:b1\tex:lives_in\tex:rome",
        ":anna\tex:knows\t_:b1",
        ":björn\tex:lives_in\tex:paris",
        ":björn\tex:homepage\tmailto:b@example.com",
    ]
    assert lines(tmp_path, "types.tsv") == [
        ":anna\tex:Person",
        *(f"ex:paris\tex:{kind}" for kind in ("City", "Place", "Thing")),
    ]
    assert sorted(lines(tmp_path, "prefixes.tsv")) == [
        f"\t{EX}people/",
        f"ex\t{EX}",
        "rdfs\thttp://www.w3.org/2000/01/rdf-schema#",
    ]
    assert (result.typed, result.classes) == (2, 4)
    assert result.counts == {
        "literals left out": 1,
        "schema statements (subclasses, domains, restrictions, shapes) left out of the facts": 3,
        "types of things that have no facts left out": 1,
    }


def test_a_file_may_give_a_well_known_namespace_another_prefix(tmp_path):
    """`--type-relation rdf:type`, the default, is that IRI whatever the file calls it; its own rdf: is another."""
    text = f"@prefix r: <{rdf.RDF}> . @prefix rdf: <http://x/> . @prefix e: <http://e/> . e:a r:type e:C ; {{}} e:b ."
    _, triples = imported(tmp_path, "g.ttl", text.replace("@prefix rdf: <http://x/> . ", "").format("e:p"))
    assert triples == ["e:a\te:p\te:b"] and lines(tmp_path, "types.tsv") == ["e:a\te:C"]
    (tmp_path / "out" / "triples.tsv").unlink()
    _, triples = imported(tmp_path, "h.ttl", text.format("rdf:type"), keep_schema=True)
    assert triples == ["e:a\tr:type\te:C", "e:a\trdf:type\te:b"]
    assert lines(tmp_path, "types.tsv") == ["e:a\te:b"]


def test_keep_schema_and_another_type_relation(tmp_path):
    _, triples = imported(tmp_path, "graph.ttl", TURTLE, keep_schema=True)
    assert "ex:City\trdfs:subClassOf\tex:Place" in triples and len(triples) == 12
    for number, name in enumerate(("ex:lives_in", EX + "lives_in")):
        _, triples = imported(tmp_path / "out", f"{number}.ttl", TURTLE, type_relation=name)
        assert not any("lives_in" in line for line in triples)
        assert lines(tmp_path / "out", "types.tsv") == [":anna\tex:paris", ":björn\tex:paris", "_:b1\tex:rome"]
        (tmp_path / "out" / "out" / "triples.tsv").unlink()


@pytest.mark.parametrize(
    "name, text, expected",
    [
        (
            "g.nq",
            '<a:a> <a:p> <a:b> <a:graph> .\n<a:a> <a:p> <a:b> .\n<a:a> <a:p> "x y" <a:graph> .\n',
            "a:a\ta:p\ta:b",
        ),
        ("g.trig", "@prefix e: <http://e/> . e:graph { e:a e:p e:b . } e:a e:p e:b .", "e:a\te:p\te:b"),
        (
            "g.rdf",
            """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://e/">
            <rdf:Description rdf:about="http://e/a"><e:p rdf:resource="http://e/b"/></rdf:Description></rdf:RDF>""",
            "e:a\te:p\te:b",
        ),
        (
            "g.jsonld",
            '{"@context": {"e": "http://e/"}, "@id": "e:a", "e:p": {"@id": "e:b"}, "e:q": "literal"}',
            "e:a\te:p\te:b",
        ),
        (
            "g.jsonld",
            '\ufeff[{"@context": [{"e": "http://e/", "p": "e:p"}], "@id": "e:a", "p": {"@id": "e:b"}}, {"@id": "http://e/c"}]',
            "e:a\te:p\te:b",
        ),
        ("g.nt.gz", "<a:a> <a:p> <a:b> .\n", "a:a\ta:p\ta:b"),
        ("g.tsv", "a\tp\tb\n", "a\tp\tb"),
        ("g.csv", 'a,p,"b, ""c"""\r\n', 'a\tp\tb, "c"'),
        ("g.csv.gz", "\ufeffa,p,b\n\n,,\n", "a\tp\tb"),
    ],
)
def test_formats(tmp_path, name, text, expected):
    assert imported(tmp_path, name, text)[1] == [expected]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"columns": "rht"}, "p,a,b\n"),
        ({"columns": "hrt", "header": True}, "x,y,z\na,p,b\n"),
        ({"columns": "subject, predicate, object", "header": True}, "id,object,subject,predicate\n7,b,a,p\n"),
        ({"columns": "4,2,1"}, "b,p,x,a\n"),
        ({"columns": "hrt", "delimiter": ";"}, "a;p;b\n"),
    ],
)
def test_columns_of_tables(tmp_path, options, text):
    assert imported(tmp_path, "g.csv", text, **options)[1] == ["a\tp\tb"]


def test_openke(tmp_path):
    folder = tmp_path / "openke"
    folder.mkdir()
    (folder / "entity2id.txt").write_text("3\nanna lee\t1\nbob\t0\ntea\t2\n")
    (folder / "relation2id.txt").write_text("2\nknows\t0\nlikes\t1\n")
    (folder / "train2id.txt").write_text("2\n1 0 0\n0 2 1\n")
    import_graph([folder], tmp_path / "one")
    assert (tmp_path / "one" / "triples.tsv").read_text() == "anna lee\tknows\tbob\nbob\tlikes\ttea\n"
    (folder / "valid2id.txt").write_text("1\n1\t2\t1\n")
    (folder / "test2id.txt").write_text("1\n0 1 0\n")
    result = import_graph([folder], tmp_path / "three")
    texts = {split: (tmp_path / "three" / f"{split}.tsv").read_text() for split in ("train", "valid", "test")}
    assert texts == {
        "train": "anna lee\tknows\tbob\nbob\tlikes\ttea\n",
        "valid": "anna lee\tlikes\ttea\n",
        "test": "bob\tknows\tanna lee\n",
    }
    assert result.triples == 4
    for file, text, fault in (
        ("train2id.txt", "2\n1 0 0\n0 3 1\n", "train2id.txt:3: expected ids of head, tail and relation"),
        ("train2id.txt", "3\n1 0 0\n0 2 1\n", "its first line says 3 lines, it has 2"),
        ("entity2id.txt", "3\nanna lee\t1\nbob\t1\ntea\t2\n", "entity2id.txt:3: expected a name, a tab and a new id"),
        (
            "entity2id.txt",
            "3\nanna\tlee\t1\nbob\t0\ntea\t2\n",
            "entity2id.txt:2: expected a name without tabs and carriage returns, found",
        ),
        (
            "entity2id.txt",
            "3\nanna lee\t1\nbo\rb\t0\ntea\t2\n",
            "entity2id.txt:3: expected a name without tabs and carriage returns, found",
        ),
    ):
        before = (folder / file).read_text()
        (folder / file).write_text(text)
        with pytest.raises(CardkgeError, match=fault):
            import_graph([folder], tmp_path / "bad")
        (folder / file).write_text(before)


@pytest.mark.parametrize(
    "name, text, fault",
    [
        ("g.nt", "<a:a> <a:p> <a:b> .\n<a:a> <a:p> .\n", r"g\.nt:2: not N-TRIPLES: "),
        ("g.ttl", "@prefix e: <http://e/> .\ne:a e:p f:b .\n", r"g\.ttl:2: not TURTLE: .*prefix"),
        ("g.nt", '<a:a> <a:p> "only" .\n', r"no triples between entities \(1 literals left out\)"),
        ("g.csv", "a,p,b\na,p\n", r"g\.csv:2: expected 3 fields, found 2"),
        ("g.csv", 'a,p,b\na,"x\ty",b\n', r"g\.csv:2: a tab or a line's end inside a name"),
        ("g.csv", "a,,b\n", r"g\.csv:1: an empty name"),
        ("g.csv", 'a,p,"b\n', r"g\.csv:1: not CSV"),
        ("g.csv", "a;p;b\n", r"g\.csv:1: one field, no ',' in it; try --delimiter ';'"),
        ("g.csv", "a,p,b,c\n", r"g\.csv: 4 columns; say which are head, relation and tail"),
        ("g.tsv", "a\tp\tb\rc\n", r"g\.tsv:1: a tab or a line's end inside a name"),
        ("g.xlsx", "", r"unknown ending \.xlsx"),
        ("g.json", "{", r"g\.json:1: not JSON-LD"),
        (
            "g.json",
            '{"@context": "https://schema.org", "@id": "a:a", "knows": {"@id": "a:b"}}',
            r"g\.json:1: not JSON-LD: its @context is on the web and is not loaded; write the context into",
        ),
        ("g.csv", "h,r,t\ra,p,b\r", r"g\.csv:1: a carriage return inside a line; save it with lines that end in LF"),
    ],
)
def test_faults_name_file_and_line(tmp_path, name, text, fault):
    with pytest.raises(CardkgeError, match=fault):
        imported(tmp_path, name, text)
    assert not (tmp_path / "out" / "triples.tsv").exists()


def test_bounds_use_the_ranges_and_classes_of_the_graph(tmp_path):
    text = TURTLE + "ex:lives_in rdfs:range ex:City . ex:knows rdfs:range ex:Person ."
    shapes = """@prefix ex: <http://example.org/> . @prefix sh: <http://www.w3.org/ns/shacl#> .
    ex:S sh:targetClass ex:Person ; sh:property [ sh:path ex:lives_in ; sh:qualifiedMaxCount 2 ;
        sh:qualifiedMinCount 1 ; sh:qualifiedValueShape [ sh:class ex:Place ] ] , [ sh:path ex:knows ;
        sh:qualifiedMaxCount 3 ; sh:qualifiedValueShape [ sh:class ex:City ] ] ."""
    (tmp_path / "shapes.ttl").write_text(shapes)
    result, _ = imported(tmp_path, "graph.ttl", text, [tmp_path / "shapes.ttl"])
    assert lines(tmp_path, "bounds.tsv") == ["ex:lives_in\t1\t2\tex:Person"]  # every city is a place
    assert [note.partition(": ")[2] for note in result.notes] == [
        "sh:qualifiedMaxCount of ex:knows, whose values may be of other classes"
    ]


def test_bounds_that_cannot_be_read_leave_no_folder(tmp_path):
    """A fault of the bounds' syntax is found before the graph is read; an unknown name, after it."""
    for text, fault in (("knows\t0\n", "found 2 fields"), ("likes\t0\t1\n", "unknown relation 'likes'")):
        (tmp_path / "bounds.tsv").write_text(text)
        with pytest.raises(CardkgeError, match=fault):
            imported(tmp_path, "g.tsv", "a\tknows\tb\n", [tmp_path / "bounds.tsv"])
        assert not (tmp_path / "out" / "triples.tsv").exists()
    (tmp_path / "bounds.tsv").write_text("knows\t0\t1\n")
    assert imported(tmp_path, "g.tsv", "a\tknows\tb\n", [tmp_path / "bounds.tsv"])[0].bounds == 1


@pytest.mark.parametrize("name, text", [("g.csv", "a,p,b\r\n,,\r\n\r\n,,\r\n"), ("g.tsv", "a\tp\tb\n\t\t\n\n\t\t\n")])
def test_blank_lines_at_the_end_of_a_spreadsheet_are_counted(tmp_path, name, text):
    result, triples = imported(tmp_path, name, text)
    assert triples == ["a\tp\tb"] and result.counts == {"blank lines skipped": 3}


def test_normalised_names_of_tables(tmp_path):
    text = "Bj\u00f6rn,knows,bob\nBjo\u0308rn,knows ,bob\u00a0\nanna,knows, bob\n"
    result, triples = imported(tmp_path, "g.csv", text)
    assert len(triples) == 3 and result.entities == 6
    assert [note.rpartition(" (")[2] for note in result.notes] == ["--normalise makes those of tables one)"] * 2
    result, triples = imported(tmp_path / "out", "h.csv", text, normalise=True)
    assert triples == ["Bj\u00f6rn\tknows\tbob", "anna\tknows\tbob"] and result.notes == []
    assert result.counts == {"duplicates dropped": 1}


FINE = f"<{EX}a> <{EX}p> <{EX}b> .\n"


@pytest.mark.parametrize(
    "line",
    [
        "<a b> <a:p> <a:c> .",
        "<s> <a:p> <a:c> .",
        '<a:s> <a:p> "x"@1 .',
        '<a:s> <a:p> "x"@en--us .',
        "<a:s> <a:p> <c> .",
        '<a:s> <a:p> "x"^^<nope> .',
        '<a:s> "p" <a:c> .',
        "<a:s> _:p <a:c> .",
        '"x" <a:p> <a:c> .',
        "<a:s> <p> <a:c> .",
        '<a:s> <a:p> "x\\q" .',
        "<a:\\u0020s> <a:p> <a:c> .",
        "<a:\\u00ZZ> <a:p> <a:c> .",
        "<a:s> <a:p> <a:c>",
        '<a:s> <a:p> "a\nb" .',
        "<a:s> <a:p> <a:c> . <a:d> <a:e> <a:f> .",
        "_:-a <a:p> <a:c> .",
        "<a:%zz> <a:p> <a:c> .",
        "<http://[x> <a:p> <a:c> .",
        "<a:s> <a:p> <a:\uffff> .",
        "<a:\\uD800> <a:p> <a:c> .",
        "@prefix a: <b:> .",
        "<a:s> <a:p> 'x' .",
        '<a:s> <a:p> "x"@abcdefghijk .',
        "<a:a{b}> <a:p> <a:c> .",
        "<a:s> <a:p> <a:c> <a:g> .",
    ],
)
def test_what_is_no_n_triples_is_found(tmp_path, line):
    """In the first line of a file, and in one that comes long after the reader has come to trust it."""
    for number, before in enumerate((0, 2000)):
        with pytest.raises(CardkgeError, match=rf"g\.nt:({before + 1}|{before + 2}): not N-TRIPLES: "):
            imported(tmp_path, "g.nt", FINE * before + line + "\n" + FINE)
        assert not (tmp_path / "out").exists(), number


def test_what_is_n_triples_is_read_alike_wherever_the_literals_begin(tmp_path):
    odd = NTRIPLES + '<a:s> <a:p> "a\\nb" .\n<a:\\u00F6> <a:p> _:b.\n'
    results = []
    for number, before in enumerate((0, 2000)):
        (tmp_path / str(number)).mkdir()
        result, triples = imported(tmp_path / str(number), "g.nt", FINE * before + odd + FINE)
        results.append((sorted(triples), result.counts["literals left out"]))
    assert results[0] == results[1] and results[0][1] == 3 and "a:\u00f6\ta:p\t_:b" in results[0][0]


def test_new_facts_about_blank_nodes_are_about_those_of_the_graph(tmp_path):
    """The recipe of OWN-GRAPH.md: `import graph.ttl new.nt`, where new.nt names blank nodes as `complete` does."""
    imported(tmp_path, "graph.ttl", TURTLE)
    term = rdf.read_prefixes(tmp_path / "out" / "prefixes.tsv").term
    (tmp_path / "new.nt").write_text(f"{term('_:b1')} {term('ex:knows')} {term(':anna')} .\n")
    both = import_graph([tmp_path / "graph.ttl", tmp_path / "new.nt"], tmp_path / "both")
    assert both.entities == 6
    assert (tmp_path / "both" / "triples.tsv").read_text().splitlines() == [
        *lines(tmp_path, "triples.tsv"),
        "_:b1\tex:knows\t:anna",
    ]


def test_labels_of_one_file_are_never_those_of_another(tmp_path):
    (tmp_path / "a.nt").write_text("_:f2-x <a:p> _:x .\n_:f1-x <a:p> _:f2-b1 .\n")
    (tmp_path / "b.nt").write_text("_:x <a:p> <a:b> .\n")
    (tmp_path / "c.tsv").write_text("_:x\ta:p\t_:f1-x\n")
    import_graph([tmp_path / "a.nt", tmp_path / "b.nt"], tmp_path / "out")
    assert lines(tmp_path, "triples.tsv") == ["_:f1-f2-x\ta:p\t_:x", "_:f1-f1-x\ta:p\t_:f1-f2-b1", "_:f2-x\ta:p\ta:b"]
    import_graph([tmp_path / "b.nt", tmp_path / "c.tsv"], tmp_path / "table")
    assert (tmp_path / "table" / "triples.tsv").read_text() == "_:f1-x\ta:p\ta:b\n_:x\ta:p\t_:f1-x\n"


def test_relative_iris_are_said_and_base_makes_them_the_same_everywhere(tmp_path):
    text = "@prefix : <#> . <anna> :knows <../bob> , <http://e/c> ."
    result, triples = imported(tmp_path, "g.ttl", text)
    assert triples[0] == f"file://{tmp_path}/anna\t:knows\tfile://{tmp_path.parent}/bob"
    assert [note.partition(":")[0] for note in result.notes] == [
        "3 names are relative IRIs, or IRIs of files, such as file"
    ]
    result, triples = imported(tmp_path / "out", "g.ttl", text, base="http://e/x/y")
    assert triples == ["http://e/x/anna\t:knows\thttp://e/bob", "http://e/x/anna\t:knows\thttp://e/c"]
    assert result.notes == [] and lines(tmp_path / "out", "prefixes.tsv") == ["\thttp://e/x/y#"]
    with pytest.raises(CardkgeError, match=r"--base no iri: expected an IRI, such as"):
        imported(tmp_path / "out" / "out", "g.ttl", text, base="no iri")


def test_relative_iris_of_shapes_have_the_same_base(tmp_path):
    (tmp_path / "shapes").mkdir()
    shapes = tmp_path / "shapes" / "s.ttl"
    shapes.write_text(
        "@prefix sh: <http://www.w3.org/ns/shacl#> . <S> sh:targetSubjectsOf <knows> ;"
        " sh:property [ sh:path <knows> ; sh:maxCount 1 ] ."
    )
    result, _ = imported(tmp_path, "g.ttl", "<anna> <knows> <bob> .", [shapes])
    assert result.bounds == 0 and [note.partition(" ")[0] for note in result.notes] == ["3", *[f"{shapes}:"] * 3]
    assert f"{shapes}: 2 names are relative IRIs, or IRIs of files" in result.notes[1]
    result, _ = imported(tmp_path / "out", "g.ttl", "<anna> <knows> <bob> .", [shapes], base="http://e/")
    assert result.bounds == 1 and lines(tmp_path / "out", "bounds.tsv") == ["http://e/knows\t0\t1"]


def test_members_of_lists_are_tails(tmp_path):
    text = """@prefix x: <http://e/> .
    x:book x:authors ( x:ann ( x:bob "Zoe" ) x:ann ) ; x:names ( "Zoe" ) ; x:none () .
    x:other x:authors ( x:bob ) . x:K <http://www.w3.org/2002/07/owl#unionOf> ( x:A x:B ) ."""
    result, triples = imported(tmp_path, "g.ttl", text)
    assert triples == [
        "x:book\tx:authors\tx:ann",
        "x:book\tx:authors\tx:bob",
        f"x:book\tx:none\t{rdf.RDF}nil",
        "x:other\tx:authors\tx:bob",
    ]
    assert result.counts["facts whose tail is a member of a list"] == 3
    (tmp_path / "ring.nt").write_text(f"<a:a> <a:p> _:x .\n_:x <{rdf.RDF}first> <a:b> .\n_:x <{rdf.RDF}rest> _:x .\n")
    import_graph([tmp_path / "ring.nt"], tmp_path / "ring")
    assert (tmp_path / "ring" / "triples.tsv").read_text() == "a:a\ta:p\ta:b\n"


BOM = "\ufeff"


@pytest.mark.parametrize("name, text", [("g.nt", NTRIPLES), ("g.ttl", TURTLE), ("g.nt.gz", NTRIPLES)])
def test_a_byte_order_mark_before_rdf_is_passed_over(tmp_path, name, text):
    _, plain = imported(tmp_path, name, text)
    assert imported(tmp_path / "out", name, BOM + text)[1] == plain


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name, text", [("g.ttl", TURTLE), ("g.tsv", "ann\tp\tbob\n"), ("g.csv", "Zoë,p,bob\n")])
def test_utf_16_is_named(tmp_path, encoding, name, text):
    (tmp_path / name).write_bytes(text.encode(encoding))
    what = encoding.upper().replace("-L", "L").replace("-B", "B")
    with pytest.raises(CardkgeError, match=rf"{name}:1: not UTF-8 .*; convert it, say `iconv -f {what} -t UTF-8 "):
        import_graph([tmp_path / name], tmp_path / "out")


@pytest.mark.parametrize(
    "name, text, hint",
    [
        (
            "g.ttl",
            "<?xml version='1.0'?>\n<rdf:RDF/>",
            r"looks like RDF/XML: end its name in \.rdf, or .* --format rdf",
        ),
        ("g.nt", "# x\n@prefix e: <http://e/> .\ne:a e:p e:b .", r"looks like Turtle: .* --format ttl"),
        ("g.rdf", '{"@id": "a:a"}', r"looks like JSON-LD: .* --format jsonld"),
        ("g.ttl", "<!DOCTYPE html>\n<html>", "looks like a web page: download"),
    ],
)
def test_the_format_that_a_file_has_is_named(tmp_path, name, text, hint):
    with pytest.raises(CardkgeError, match=hint):
        imported(tmp_path, name, text)


def test_openke_ids_that_begin_at_1_get_a_hint(tmp_path):
    (tmp_path / "entity2id.txt").write_text("2\nanna\t1\nbob\t2\n")
    (tmp_path / "relation2id.txt").write_text("1\nknows\t0\n")
    (tmp_path / "train2id.txt").write_text("1\n1 2 0\n")
    with pytest.raises(
        CardkgeError, match=r"entity2id\.txt: its ids are not 0 to 1; they begin at 1: take 1 from each"
    ):
        import_graph([tmp_path], tmp_path / "out")
    (tmp_path / "entity2id.txt").write_text("2\nanna\t2\nbob\t7\n")
    with pytest.raises(CardkgeError, match=r"its ids are not 0 to 1$"):
        import_graph([tmp_path], tmp_path / "out")


def test_format_says_how_files_are_read(tmp_path):
    assert imported(tmp_path, "g.nt", "@prefix e: <http://e/> . e:a e:p e:b .", form="ttl")[1] == ["e:a\te:p\te:b"]
    assert imported(tmp_path / "out", "g.dat", "a,p,b\n", form="csv")[1] == ["a\tp\tb"]


@pytest.mark.parametrize("text", ["sep=;\na;p;b\n", '"sep=;"\na;p;b\n', "SEP=;\r\n\na;p;b\n"])
def test_the_first_line_of_a_spreadsheet_may_name_its_separator(tmp_path, text):
    assert imported(tmp_path, "g.csv", text)[1] == ["a\tp\tb"]
    with pytest.raises(CardkgeError, match=r"g\.csv:[34]: expected 3 fields, found 2"):
        imported(tmp_path / "out", "g.csv", text + "a;p\n")


def test_several_files_keep_their_blank_nodes_apart_and_share_names(tmp_path):
    (tmp_path / "a.nt").write_text(f"_:x <{EX}knows> <{EX}anna> .\n")
    (tmp_path / "b.ttl").write_text(f"@prefix ex: <{EX}> . _:x ex:knows ex:anna .")
    (tmp_path / "c.tsv").write_text("ex:anna\tex:knows\tbob\n")
    (tmp_path / "d.ttl").write_text(f"@prefix ex: <http://other/> . <{EX}anna> ex:knows ex:zoe .")
    import_graph([tmp_path / f"{name}" for name in ("a.nt", "b.ttl", "c.tsv", "d.ttl")], tmp_path / "out")
    assert lines(tmp_path, "triples.tsv") == [
        "_:f1-x\tex:knows\tex:anna",
        "_:f2-b1\tex:knows\tex:anna",
        "ex:anna\tex:knows\tbob",
        "ex:anna\tex2:knows\tex2:zoe",
    ]


def test_tables_of_an_imported_folder_keep_their_short_names(tmp_path):
    """New facts as N-Triples, beside the folder that they were found in: the names are the same."""
    imported(tmp_path, "g.ttl", TURTLE)
    (tmp_path / "new.nt").write_text(f"<{EX}people/björn> <{EX}lives_in> <{EX}rome> .\n")
    result = import_graph([tmp_path / "new.nt", tmp_path / "out" / "triples.tsv"], tmp_path / "both")
    both = (tmp_path / "both" / "triples.tsv").read_text().splitlines()
    assert both == [":björn\tex:lives_in\tex:rome", *lines(tmp_path, "triples.tsv")] and result.entities == 6
    assert (
        lines(tmp_path / "both" / "..", "prefixes.tsv") == (tmp_path / "both" / "prefixes.tsv").read_text().splitlines()
    )
    with pytest.raises(CardkgeError, match=r"out/prefixes.tsv: the prefix 'ex' means something else in another file"):
        import_graph(
            [tmp_path / "out" / "triples.tsv"], tmp_path / "x", ImportOptions(prefixes={"ex": "http://other/"})
        )


def test_an_imported_folder_is_not_overwritten(tmp_path):
    imported(tmp_path, "g.tsv", "a\tp\tb\n")
    with pytest.raises(CardkgeError, match=r"has a triples\.tsv; choose another --out, or --force"):
        imported(tmp_path, "g.tsv", "a\tp\tb\n")
    (tmp_path / "out" / "bounds.tsv").write_text("p\t0\t1\n")
    result = import_graph([tmp_path / "g.tsv"], tmp_path / "out", force=True)
    assert result.notes == [f"{tmp_path / 'out'}: bounds.tsv stood there before: delete what is not of this graph"]


@pytest.mark.parametrize(
    "iri, name",
    [
        ("http://example.org/anna", "ex:anna"),
        ("http://example.org/people/anna", "p:anna"),  # the longest namespace
        ("http://example.org/", "ex:"),
        ("http://other.org/anna", "http://other.org/anna"),
        ("ex:anna", "<ex:anna>"),  # an IRI that could be read as a short name
        ("urn:isbn:1", "urn:isbn:1"),
        ("http://example.org/a:b//c", "ex:a:b//c"),
    ],
)
def test_prefixes_are_reversible(iri, name):
    prefixes = rdf.Prefixes({"ex": EX, "p": EX + "people/"})
    assert prefixes.shorten(iri) == name and prefixes.expand(name) == iri
    assert prefixes.term(name) == f"<{iri}>" and prefixes.name(f"<{iri}>") == name
    assert rdf.Prefixes().name(f"<{iri}>") == iri and prefixes.name("_:b") == "_:b"


def test_the_term_of_any_name_is_read_back():
    oxigraph = pytest.importorskip("pyoxigraph")
    prefixes = rdf.Prefixes({"ex": EX})
    parts = (0x20, 0x400), (0x2000, 0x2200), (0x2BF0, 0x3010), (0xD7F0, 0xD800), (0xE000, 0xE010), (0xF8F0, 0x10000)
    points = [point for first, end in parts for point in range(first, end)]
    points += [plane * 0x10000 + low for plane in range(1, 17) for low in (0, 0xFFF, 0x1000, 0xFFFD, 0xFFFE, 0xFFFF)]
    for start in ("", "ex:", "http://other.org/", "urn:x:"):
        names = [f"{start}a{chr(point)}b" for point in points]
        text = "".join(f"{prefixes.term(name)} <x:y> <x:z> .\n" for name in names)
        read = [str(each.subject) for each in oxigraph.parse(text.encode(), oxigraph.RdfFormat.N_TRIPLES)]
        assert [prefixes.name(term) for term in read] == names
    labels = [f"_:{label}" for point in points for label in (f"a{chr(point)}b", chr(point), f"a{chr(point)}")]
    terms = [prefixes.term(name) for name in labels]
    list(oxigraph.parse("".join(f"{term} <x:y> <x:z> .\n" for term in terms).encode(), oxigraph.RdfFormat.N_TRIPLES))
    assert [prefixes.name(term) for term in terms] == labels
    assert (
        prefixes.term("_:b1.é-2") == "<urn:cardkge:_:b1.é-2>" and prefixes.term("http://[::1]/a") == "<http://[::1]/a>"
    )


def test_terms_of_names_that_are_no_iris():
    prefixes = rdf.Prefixes({"ex": EX})
    assert prefixes.term("Björn Ek, 50%") == "<urn:cardkge:Björn%20Ek,%2050%25>"
    assert prefixes.term("ex:a b") == "<urn:cardkge:ex:a%20b>"  # no IRI has a space
    assert prefixes.term("_:b1") == "<urn:cardkge:_:b1>" and prefixes.name("<urn:cardkge:_:b1>") == "_:b1"
    assert prefixes.term('"x y"@en') == '"x y"@en'
    assert prefixes.term('"x" y') == "<urn:cardkge:%22x%22%20y>"
    for name in ("Björn Ek, 50%", "ex:a b", '"x" y', "a/b#c?d", "日 本", "<", "%41", " ends "):  # and back
        assert prefixes.name(prefixes.term(name)) == name
    for iri in ("urn:cardkge:%41", "urn:cardkge:a%09b", "urn:cardkge:", "urn:cardkge:%FF"):  # not ours: they stay
        assert prefixes.name(f"<{iri}>") == iri and prefixes.term(iri) == f"<{iri}>"
    for name in ("_:b1", '"a"^^<x:y>', "plain"):
        assert prefixes.expand(name) is None


def test_blocks_of_any_size_give_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    objects = [f"<{EX}e{i}>" for i in range(30)] + [f'"literal {i} ."@en' for i in range(5)] + ["_:b1", "_:b2"]
    text = "".join(
        f"<{EX}e{rng.integers(30)}> <{EX}r{rng.integers(3)}> {objects[rng.integers(len(objects))]} .\n"
        for _ in range(999)
    )
    expected = list(dict.fromkeys(line[:-2].replace(" ", "\t", 2) for line in text.splitlines()))
    expected = [line.replace("<", "").replace(">", "") if '"' not in line else line for line in expected]
    for number, size in enumerate((64, 1000, 1 << 18)):
        monkeypatch.setattr(rdf, "BLOCK", size)
        folder = tmp_path / str(number)
        folder.mkdir()
        _, triples = imported(folder, "g.nt", text)
        assert triples == [line for line in expected if '"' not in line]


def test_later_occurrences():
    keys = np.array([5, 3, 5, 9, 3, 3, 7])
    assert sorted(sources.later_occurrences(keys).tolist()) == [2, 4, 5]
    assert sources.later_occurrences(np.array([4, 2, 1])).size == 0


def test_an_error_of_the_reader_comes_out_of_the_parser(tmp_path, monkeypatch):
    def fail(*_):
        raise CardkgeError("it went wrong")

    monkeypatch.setattr(sources.RdfReader, "consume", fail)
    with pytest.raises(CardkgeError, match=r"it went wrong"):
        imported(tmp_path, "g.nt", "<a:a> <a:p> <a:b> .\n")
