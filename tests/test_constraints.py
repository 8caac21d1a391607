"""Bounds of relations, inverses and classes: files, SHACL, OWL, which apply, and mining them."""

import math

import numpy as np
import pytest
from conftest import invoke, ok, one_error

from cardkge import CardkgeError, as_bounds
from cardkge_tools.graph import bound_files, bounds, rdf, shacl
from cardkge_tools.graph.bound_files import convert, read_files, write_bounds_file
from cardkge_tools.graph.bounds import Bound, GraphBounds, Types, Vocabulary, read_tsv

INF = math.inf
EX = "http://example.org/"
PREFIXES = "".join(
    f"@prefix {prefix}: <{namespace}> .\n"
    for prefix, namespace in {**rdf.WELL_KNOWN, "ex": EX, "xsd": "http://www.w3.org/2001/XMLSchema#"}.items()
)


def graph(relations=("knows", "parent"), classes=("person", "city"), pairs=((0, 0), (1, 0), (2, 1)), prefixes=None):
    return Vocabulary(["anna", "bob", "paris"], list(relations), Types(classes, pairs), rdf.Prefixes(prefixes or {}))


def written(tmp_path, text, name="bounds.tsv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def rows(bounds):
    return [(bound.name, bound.lower, bound.upper, bound.kind) for bound in getattr(bounds, "stated", bounds)]


# --- TSV


def test_tsv_with_classes_and_inverse(tmp_path):
    path = written(
        tmp_path, "parent\t0\t2\n^parent\t0\tinf\n\nparent\t1\t2\tperson\nparent\t0\t0\tcity\nknows\t1e1\t2.5e1\t\n"
    )
    found, notes = read_files([path], graph())
    assert rows(found) == [
        ("parent", 0, 2, None), ("^parent", 0, INF, None), ("parent", 1, 2, "person"), ("parent", 0, 0, "city"),
        ("knows", 10, 25, None),
    ]  # fmt: skip
    assert notes == []
    write_bounds_file(tmp_path / "again.tsv", found.stated)
    assert rows(read_tsv(tmp_path / "again.tsv", graph())) == rows(found)
    assert "^parent\t0\tinf\nparent\t1\t2\tperson\n" in (tmp_path / "again.tsv").read_text()


@pytest.mark.parametrize(
    "text, fault",
    [
        ("knows\t1\n", ":1: expected relation, lower, upper and perhaps a class .* with tabs between, found 2 fields"),
        ("knows\t0\t1\na\t0\t1\n", ":2: unknown relation 'a'; expected one of the data set's 2"),
        ("know\t0\t1\n", ":1: unknown relation 'know'; expected one of the data set's 2; did you mean 'knows'"),
        ("knows\t0\t1\tcat\n", ":1: unknown class 'cat'; expected one of the data set's 2"),
        ("knows\t0\t1\tcity\nknows\t0\t2\tcity\n", ":2: relation 'knows' of class 'city' for the second"),
        ("^knows\t0\t1\n^knows\t0\t2\n", ":2: relation '\\^knows' for the second time, after line 1"),
        *(
            (f"knows\t0\t{number}\n", ":1: expected two numbers of at least 0, inf for no upper bound, found '0'")
            for number in ("1_0", "１", "*", "-1", "unbounded", "nan", "1e", "0x1", " 1")
        ),
        ("knows\t2\t1\n", ":1: expected 0 <= lower <= upper, lower finite, inf for no upper bound, found '2' and '1'"),
        ("knows\tinf\tinf\n", ":1: expected 0 <= lower <= upper, lower finite"),
        ("parent\t0\t2\nparent\t3\t4\tperson\n", "no number is left between parent 0 to 2 .*:1. and parent of pers"),
    ],
)  # fmt: skip
def test_faults_of_tsv_name_lines(tmp_path, text, fault):
    with pytest.raises(CardkgeError, match=fault):
        read_files([written(tmp_path, text)], graph())


def test_no_types_no_classes(tmp_path):
    with pytest.raises(CardkgeError, match=r"class 'city', but the data set has no types.tsv"):
        read_files([written(tmp_path, "knows\t0\t1\tcity\n")], graph(classes=(), pairs=()))


def test_a_file_without_a_bound_is_said(tmp_path):
    found, notes = read_files([written(tmp_path, "\n\t\t\n")], graph())
    assert len(found) == 0 and notes == [f"{tmp_path}/bounds.tsv: no bound in it for this graph"]


def test_a_name_in_another_unicode_form_is_found(tmp_path):
    composed, decomposed = "\u00e9t\u00e9", "e\u0301te\u0301"
    path = written(tmp_path, f"{decomposed}\t0\t1\n^{decomposed}\t0\t1\t {decomposed}\n")
    found, notes = read_files([path], graph((composed,), (composed,), [(0, 0)]))
    assert rows(found) == [(composed, 0, 1, None), (f"^{composed}", 0, 1, composed)]
    said = r"'e\u0301te\u0301' is not in the data; '\xe9t\xe9', which looks alike, is"
    assert notes == [f"{path}:1: relation {said}", f"{path}:2: relation {said}", f"{path}:2: class ' {said[1:]}"]
    pytest.importorskip("pyoxigraph")
    shape = f"<{EX}S> sh:targetClass <{EX}{decomposed}> ; sh:property [ sh:path <{EX}{decomposed}> ; sh:maxCount 1 ] ."
    path = written(tmp_path, PREFIXES + shape, "shapes.ttl")
    names = graph((f"ex:{composed}",), (f"ex:{composed}",), [(0, 0)], {"ex": EX})
    found, notes = read_files([path], names)
    assert rows(found) == [(f"ex:{composed}", 0, 1, f"ex:{composed}")]
    assert [note.partition(" is not in the data; ")[2] for note in notes] == [
        r"'ex:\xe9t\xe9', which looks alike, is"
    ] * 2


def test_a_name_may_be_written_as_its_iri(tmp_path):
    names = graph(("ex:knows", "parent"), ("ex:person",), [(0, 0)], {"ex": EX})
    found, notes = read_files([written(tmp_path, f"^{EX}knows\t0\t1\t<{EX}person>\nparent\t0\t2\n")], names)
    assert rows(found) == [("^ex:knows", 0, 1, "ex:person"), ("parent", 0, 2, None)] and notes == []


def test_two_files(tmp_path):
    one, two = written(tmp_path, "parent\t0\t2\n"), written(tmp_path, "parent\t0\t0\tcity\n", "two.tsv")
    assert rows(read_files([one, two], graph())[0]) == [("parent", 0, 2, None), ("parent", 0, 0, "city")]
    with pytest.raises(CardkgeError, match=r"twice the same relation and class: parent 0 to 2 .*bounds.tsv:1. and "):
        read_files([one, written(tmp_path, "parent\t0\t3\n", "two.tsv")], graph())


# --- which bounds apply


def test_the_tightest_applies():
    types = Types(["person", "child", "city"], [(0, 0), (1, 0), (1, 1), (2, 2)])
    found = GraphBounds(
        [
            Bound("parent", 0, 5),
            Bound("parent", 1, 2, kind="person"),
            Bound("parent", 2, 4, kind="child"),
            Bound("parent", 0, 0, kind="city"),
            Bound("knows", 0, 3, inverse=True),
            Bound("knows", 0, 1, inverse=True, kind="city"),
        ],
        ["knows", "parent"],
        types,
    )
    assert found.of(1, [0, 1, 2, 3]).tolist() == [[1, 2], [2, 2], [0, 0], [0, 5]]
    assert found.of([1, 0, 1], [0, 0, 2]).tolist() == [[1, 2], [0, INF], [0, 0]]
    assert found.of(0, [0, 2], inverse=True).tolist() == [[0, 3], [0, 1]]
    assert found.tables[0].tolist() == [[0, INF], [0, 5]]
    assert found.tables[1].tolist() == [[0, 3], [0, INF]]
    assert found.is_bounded().tolist() == [False, True] and found.is_bounded(inverse=True).tolist() == [True, False]
    upper = found.without_lower()
    assert upper.of(1, [0, 1, 2, 3]).tolist() == [[0, 2], [0, 2], [0, 0], [0, 5]]
    plain = as_bounds(np.array([[0, 2], [1, INF]]), 2)
    assert plain.of([1, 0], [5, 5]).tolist() == [[1, INF], [0, 2]]
    assert plain.of([1, 0], [5, 5], inverse=True).tolist() == [[0, INF]] * 2


def test_bounds_of_classes_conflict_only_where_they_share_a_member():
    bounds = [Bound("r", 0, 1, kind="a", where="x:1"), Bound("r", 2, 3, kind="b", where="x:2")]
    GraphBounds(bounds, ["r"], Types(["a", "b"], [(0, 0), (1, 1)]))
    with pytest.raises(
        CardkgeError, match=r"no number is left between r of a 0 to 1 \(x:1\) and r of b 2 to 3 \(x:2\)"
    ):
        GraphBounds(bounds, ["r"], Types(["a", "b"], [(0, 0), (1, 1), (0, 1)]))


def test_types(tmp_path):
    path = written(tmp_path, "anna\tperson\nbob\tperson\nanna\tdoctor\nzoe\tperson\nanna\tperson\n", "types.tsv")
    types = bounds.read_types(path, ["anna", "bob", "paris"])
    assert (
        types.classes == ["person", "doctor"]
        and len(types.notes) == 1
        and "types.tsv: 1 line is about names" in types.notes[0]
    )
    assert types.pairs.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert types.members("person").tolist() == [0, 1] and types.members("doctor").tolist() == [0]
    assert types.has([2, 1, 0], "doctor").tolist() == [False, False, True]
    assert types.has([0], "cat").tolist() == [False]
    assert bounds.types_text(types, ["anna", "bob", "paris"]) == "anna\tperson\nanna\tdoctor\nbob\tperson\n"
    with pytest.raises(CardkgeError, match=r"types\.tsv:1: expected an entity and its class"):
        bounds.read_types(written(tmp_path, "anna\n", "types.tsv"), ["anna"])


# --- SHACL and OWL

SHAPES = """
ex:PersonShape a sh:NodeShape ; sh:targetClass ex:person ;
    sh:property [ sh:path ex:parent ; sh:minCount 1 ; sh:maxCount 2 ] ;
    sh:property [ sh:path ex:knows ; sh:qualifiedMinCount 1 ; sh:qualifiedValueShape [ sh:class ex:person ] ] ;
    sh:property [ sh:path ex:parent ; sh:maxCount 3 ] ;
    sh:node ex:Named .
ex:Named a sh:NodeShape ; sh:property [ sh:path [ sh:inversePath ex:parent ] ; sh:maxCount 20 ] .
ex:city a sh:NodeShape, rdfs:Class ; sh:and ( [ sh:property [ sh:path ex:parent ; sh:maxCount 0 ] ] ) .
[] a sh:NodeShape ; sh:targetSubjectsOf ex:knows ; sh:property [ sh:path ex:knows ; sh:maxCount 9 ] .
[] a sh:PropertyShape ; sh:targetObjectsOf ex:knows ; sh:path [ sh:inversePath ex:knows ] ; sh:maxCount 8 .
ex:Off sh:targetClass ex:person ; sh:deactivated true ; sh:property [ sh:path ex:knows ; sh:maxCount 1 ] .
"""


def read_shapes(tmp_path, text, **of_graph):
    pytest.importorskip("pyoxigraph")
    path = written(tmp_path, PREFIXES + text, "shapes.ttl")
    return read_files(
        [path], graph(("ex:knows", "ex:parent"), ("ex:person", "ex:city"), prefixes={"ex": EX}, **of_graph)
    )


def test_shacl(tmp_path):
    found, notes = read_shapes(tmp_path, SHAPES)
    assert sorted(rows(found), key=str) == [
        ("^ex:knows", 0, 8, None),
        ("^ex:parent", 0, 20, "ex:person"),
        ("ex:knows", 0, 9, None),
        ("ex:knows", 1, INF, "ex:person"),
        ("ex:parent", 0, 0, "ex:city"),
        ("ex:parent", 1, 2, "ex:person"),
    ]
    assert notes == []


def test_qualified_maxima_need_the_range(tmp_path):
    text = """ex:S sh:targetClass ex:person ; sh:property [ sh:path ex:knows ;
        sh:qualifiedMaxCount 4 ; sh:qualifiedMinCount 1 ; sh:qualifiedValueShape [ sh:class ex:person ] ] {} . {}"""
    found, notes = read_shapes(tmp_path, text.format("", ""))
    assert rows(found) == [("ex:knows", 1, INF, "ex:person")]
    assert notes == [f"{tmp_path}/shapes.ttl: sh:qualifiedMaxCount of ex:knows, whose values may be of other classes"]
    for more in (
        ("", "ex:knows rdfs:range ex:person ."),
        ("", "ex:knows rdfs:range ex:student . ex:student rdfs:subClassOf ex:person ."),
        ("; sh:property [ sh:path ex:knows ; sh:class ex:person ]", ""),
    ):
        found, notes = read_shapes(tmp_path, text.format(*more))
        assert rows(found) == [("ex:knows", 1, 4, "ex:person")] and notes == []


def test_ranges_of_the_graph_and_of_other_files(tmp_path):
    """What says that a relation has values of one class only may stand beside the shapes: in the graph, or a file."""
    pytest.importorskip("pyoxigraph")
    shape = written(
        tmp_path,
        PREFIXES
        + """ex:S sh:targetClass ex:person ; sh:property [ sh:path ex:knows ; sh:qualifiedMaxCount 4 ;
        sh:qualifiedValueShape [ sh:class ex:person ] ] , [ sh:path [ sh:inversePath ex:parent ] ;
        sh:qualifiedMaxCount 3 ; sh:qualifiedValueShape [ sh:class ex:person ] ] .""",
        "shapes.ttl",
    )
    text = "ex:knows rdfs:range ex:student . ex:parent rdfs:domain ex:person . ex:student rdfs:subClassOf ex:person ."
    ontology = written(tmp_path, PREFIXES + text, "ontology.ttl")
    names = graph(("ex:knows", "ex:parent"), ("ex:person",), prefixes={"ex": EX})
    expected = [("ex:knows", 0, 4, "ex:person"), ("^ex:parent", 0, 3, "ex:person")]
    found, notes = read_files([shape, ontology], names)
    assert rows(found) == expected and notes == [f"{ontology}: no bound in it for this graph"]
    found, notes = read_files([shape], names, schema=rdf.read_graph(ontology)[0])
    assert rows(found) == expected and notes == []
    with open(shape, "a") as file:
        file.write(" _:b rdfs:subClassOf ex:person .")
    foreign = [
        (f"<{EX}{name}>", f"<{rdf.RDFS}{what}>", "_:b") for name, what in (("knows", "range"), ("parent", "domain"))
    ]
    assert rows(read_files([shape], names, schema=foreign)[0]) == []  # a blank node of another file, not this one
    found, notes = read_files([shape], names)
    assert rows(found) == [] and [note.partition(": ")[2] for note in notes] == [
        "sh:qualifiedMaxCount of ex:knows, whose values may be of other classes",
        "sh:qualifiedMaxCount of ex:parent, whose values may be of other classes",
        "no bound in it for this graph",
    ]


def test_what_is_not_read_is_said(tmp_path):
    text = """
    ex:A sh:target [ a ex:Query ] ; sh:property [ sh:path ex:knows ; sh:maxCount 1 ] .
    ex:B sh:targetClass ex:person ; sh:property [ sh:path ( ex:knows ex:parent ) ; sh:maxCount 1 ] ; sh:or ( ex:A ) .
    ex:C sh:targetSubjectsOf ex:parent ; sh:property [ sh:path ex:knows ; sh:maxCount 1 ] .
    ex:D sh:targetClass ex:person ; sh:property [ sh:path ex:likes ; sh:maxCount 1 ] .
    ex:E sh:targetClass ex:cat ; sh:property [ sh:path ex:knows ; sh:maxCount 1 ] .
    ex:F sh:targetClass ex:person ; sh:property [ sh:path ex:knows ; sh:node ex:G ] .
    ex:G sh:property [ sh:path ex:parent ; sh:minCount 2 ] .
    ex:H sh:targetClass ex:person ; sh:deactivated true ; sh:property [ sh:path ex:parent ; sh:minCount 2 ] .
    """
    found, notes = read_shapes(tmp_path, text)
    assert rows(found) == []
    assert [note.partition(": ")[2] for note in notes] == [
        "sh:target is not read (ex:A)",
        "shape ex:A has no target that is read",
        "paths other than a property or its inverse are not read",
        "sh:or is not read (ex:B)",
        "sh:targetSubjectsOf ex:parent is not read as the target of counts of ex:knows",
        "counts of ex:parent that hold for the values of a property only",
        "1 of 2 bounds dropped, on relations that the graph does not have (ex:likes)",
        "1 of 2 bounds dropped, on classes that have no member (ex:cat)",
        "no bound in it for this graph",
    ]


def test_a_shape_of_a_node_bounds_that_head_alone(tmp_path):
    """sh:targetNode is a bound of one head, of an inverse path of one tail; a node that the graph lacks is counted."""
    pytest.importorskip("pyoxigraph")
    text = """ex:A sh:targetNode ex:anna, ex:zoe ; sh:property [ sh:path ex:parent ; sh:minCount 2 ; sh:maxCount 3 ] ,
        [ sh:path [ sh:inversePath ex:knows ] ; sh:maxCount 4 ] .
    ex:B sh:targetSubjectsOf ex:parent ; sh:property [ sh:path ex:parent ; sh:maxCount 2 ] ."""
    names = Vocabulary(["ex:bob", "ex:anna"], ["ex:knows", "ex:parent"], Types(), rdf.Prefixes({"ex": EX}))
    found, notes = read_files([written(tmp_path, PREFIXES + text, "shapes.ttl")], names)
    assert found.of(1, [0, 1]).tolist() == [[0, 2], [2, 2]]
    assert found.of(0, [0, 1], inverse=True).tolist() == [[0, INF], [0, 4]]
    assert [note.partition(": ")[2] for note in notes] == [
        "2 of 5 bounds dropped, on entities that the graph lacks (ex:zoe)"
    ]
    own = "ex:parent\t2\t3\t\tex:anna\n^ex:knows\t0\t4\t\ta name\n"
    rdf.write_prefixes(tmp_path / "prefixes.tsv", names.prefixes)
    convert(written(tmp_path, own), tmp_path / "own.ttl")
    assert "sh:targetNode ex:anna ;" in (tmp_path / "own.ttl").read_text()
    convert(tmp_path / "own.ttl", tmp_path / "again.tsv")
    assert (tmp_path / "again.tsv").read_text() == own
    with pytest.raises(
        CardkgeError, match=r"OWL has no bounds of single entities, such as ex:parent of ex:anna 2 to 3"
    ):
        convert(tmp_path / "again.tsv", tmp_path / "owl.ttl", standard="owl")


def test_bounds_of_a_shape_and_of_a_table_hold_together(tmp_path):
    """Of both the tightest holds, whichever file comes first; two lines of tables that differ are refused still."""
    pytest.importorskip("pyoxigraph")
    shape = f"<{EX}S> sh:targetClass <{EX}p> ; sh:property [ sh:path <{EX}r> ; sh:maxCount 1 ] ."
    shapes = written(tmp_path, PREFIXES + shape, "shapes.ttl")
    names = Vocabulary(["anna"], [f"{EX}r"], Types([f"{EX}p"], [(0, 0)]))
    table = written(tmp_path, f"{EX}r\t0\t2\t{EX}p\n")
    for files in ([shapes, table], [table, shapes]):
        assert rows(read_files(files, names)[0]) == [(f"{EX}r", 0, 1, f"{EX}p")]
    other = written(tmp_path, f"{EX}r\t0\t3\t{EX}p\n", "other.tsv")
    with pytest.raises(CardkgeError, match="twice the same relation and class"):
        read_files([table, other, shapes], names)


def test_shapes_that_contradict_one_another(tmp_path):
    text = """ex:A sh:targetClass ex:person ; sh:property ex:P, ex:Q .
    ex:P sh:path ex:knows ; sh:maxCount 1 . ex:Q sh:path ex:knows ; sh:minCount 2 ."""
    fault = r"no number is left between ex:knows of ex:person .* \(.*shapes\.ttl, ex:P\) and .* \(.*shapes\.ttl, ex:Q\)"
    with pytest.raises(CardkgeError, match=fault):
        read_shapes(tmp_path, text)
    with pytest.raises(CardkgeError, match=r"shapes\.ttl, ex:P: maxCount is \"many\"; expected a number"):
        read_shapes(
            tmp_path, 'ex:A sh:targetClass ex:person ; sh:property ex:P . ex:P sh:path ex:knows ; sh:maxCount "many" .'
        )


def test_owl(tmp_path):
    text = """
    ex:parent a owl:InverseFunctionalProperty .
    ex:knows a owl:ObjectProperty, owl:FunctionalProperty .
    ex:person a owl:Class ; rdfs:subClassOf
        [ a owl:Restriction ; owl:onProperty ex:parent ; owl:cardinality "2"^^xsd:nonNegativeInteger ] ,
        [ owl:onProperty [ owl:inverseOf ex:knows ] ; owl:maxCardinality 7 ] ,
        [ owl:onProperty ex:knows ; owl:someValuesFrom ex:person ] .
    ex:city owl:equivalentClass
        [ owl:intersectionOf ( ex:place [ owl:onProperty ex:parent ; owl:maxCardinality 0 ] ) ] .
    owl:Thing rdfs:subClassOf [ owl:onProperty ex:parent ; owl:minQualifiedCardinality 1 ; owl:onClass ex:person ] .
    """
    found, notes = read_shapes(tmp_path, text, pairs=((0, 0), (1, 0)))
    assert sorted(rows(found), key=str) == [
        ("^ex:knows", 0, 7, "ex:person"),
        ("^ex:parent", 0, 1, None),
        ("ex:knows", 0, 1, None),
        ("ex:knows", 1, INF, "ex:person"),
        ("ex:parent", 0, 0, "ex:city"),
        ("ex:parent", 1, INF, None),
        ("ex:parent", 2, 2, "ex:person"),
    ]
    assert notes == []


def owl(tmp_path, text):
    """(rows in order, notes without the file's name) of OWL axioms, for relations knows and parent."""
    found, notes = read_shapes(tmp_path, text)
    return sorted(rows(found), key=str), [note.partition(": ")[2] for note in notes]


def test_a_value_that_is_named_is_one_value(tmp_path):
    text = """ex:person rdfs:subClassOf [ owl:onProperty ex:knows ; owl:hasValue ex:anna ] ,
        [ owl:onProperty ex:parent ; owl:allValuesFrom owl:Nothing ] .
    ex:city rdfs:subClassOf [ owl:onProperty ex:knows ; owl:hasSelf true ] ,
        [ owl:onProperty ex:parent ; owl:hasSelf false ] ."""
    assert owl(tmp_path, text) == (
        [("ex:knows", 1, INF, "ex:city"), ("ex:knows", 1, INF, "ex:person"), ("ex:parent", 0, 0, "ex:person")],
        [],
    )


def test_numbers_of_owl_that_are_not_read_are_said(tmp_path):
    one = "[ owl:onProperty ex:knows ; owl:maxCardinality 1 ]"
    for axiom, note in (
        (f"ex:person rdfs:subClassOf [ owl:unionOf ( ex:city {one} ) ]", " in owl:unionOf (ex:person)"),
        (f"ex:person owl:equivalentClass [ owl:complementOf {one} ]", " in owl:complementOf (ex:person)"),
        (f"ex:person owl:disjointWith {one}", " in owl:disjointWith (ex:person)"),
        (f"ex:knows rdfs:domain {one}", " in rdfs:domain (ex:knows)"),
        (f"[] a owl:AllDisjointClasses ; owl:members ( ex:city {one} )", " in owl:members"),
        (
            f"ex:person rdfs:subClassOf [ owl:onProperty ex:parent ; owl:allValuesFrom {one} ]",
            " in owl:allValuesFrom (ex:person)",
        ),
    ):
        found, notes = owl(tmp_path, axiom + " .")
        assert found == [] and notes[0] == f"owl:maxCardinality of ex:knows{note} is not read", axiom


def test_a_maximum_of_a_data_range_is_no_maximum_of_all_values(tmp_path):
    text = """ex:person rdfs:subClassOf [ owl:onProperty ex:knows ;
        owl:maxQualifiedCardinality 1 ; owl:onDataRange {} ] . {}"""
    maximum = [("ex:knows", 0, 1, "ex:person")]
    for datatype, axiom, expected in (
        ("xsd:string", "", []),
        ("xsd:string", "ex:knows rdfs:range xsd:string .", maximum),
        ("xsd:string", "ex:knows rdfs:range xsd:integer .", []),
        ("rdfs:Literal", "", []),
        ("rdfs:Literal", "ex:knows a owl:DatatypeProperty .", maximum),
    ):
        found, notes = owl(tmp_path, text.format(datatype, axiom))
        assert found == expected
        assert any("qualified maximum of ex:knows, whose values may be" in note for note in notes) == (expected == [])
    found, _ = owl(tmp_path, "ex:person rdfs:subClassOf [ owl:onProperty ex:knows ; owl:maxQualifiedCardinality 1 ] .")
    assert found == []  # of no class: not OWL


def test_an_inverse_by_another_name_has_the_same_bounds(tmp_path):
    for axiom in ("ex:parent owl:inverseOf ex:knows .", "ex:knows owl:inverseOf ex:parent ."):
        found, _ = owl(tmp_path, axiom + " ex:knows a owl:InverseFunctionalProperty .")
        assert found == [("^ex:knows", 0, 1, None), ("ex:parent", 0, 1, None)]
        restriction = "ex:city rdfs:subClassOf [ owl:onProperty ex:parent ; owl:maxCardinality 3 ] ."
        found, _ = owl(tmp_path, axiom + restriction)
        assert found == [("^ex:knows", 0, 3, "ex:city"), ("ex:parent", 0, 3, "ex:city")]
    found, _ = owl(tmp_path, "ex:knows a owl:FunctionalProperty, owl:SymmetricProperty .")
    assert found == [("^ex:knows", 0, 1, None), ("ex:knows", 0, 1, None)]


def test_a_shape_of_alternatives_alone_is_named(tmp_path):
    text = """ex:S sh:targetClass ex:person ; sh:{} ( [ sh:property [ sh:path ex:knows ; sh:maxCount 1 ] ]
        [ sh:property [ sh:path ex:parent ; sh:maxCount 1 ] ] ) ."""
    for name in ("or", "xone"):
        assert owl(tmp_path, text.format(name)) == ([], [f"sh:{name} is not read (ex:S)", NO_BOUND])
    text = "ex:S sh:targetClass ex:person ; sh:not [ sh:property [ sh:path ex:knows ; sh:minCount 2 ] ] ."
    assert owl(tmp_path, text) == ([], ["sh:not is not read (ex:S)", NO_BOUND])
    text = "ex:S sh:targetClass ex:person ; sh:or ( [ sh:class ex:city ] [ sh:class ex:person ] ) ."  # no number
    assert owl(tmp_path, text) == ([], [NO_BOUND])
    assert owl(tmp_path, "[] sh:or ( [ sh:property [ sh:path ex:knows ; sh:maxCount 1 ] ] ) .") == (
        [],
        ["a nameless shape has no target that is read", NO_BOUND],
    )


NO_BOUND = "no bound in it for this graph"


def test_two_values_where_one_may_be_are_refused(tmp_path):
    for text, what in (
        ("sh:path ex:knows ; sh:maxCount 1 , 2", r"sh:maxCount has 2 values, \"1\"\^\^<.*integer> and \"2\""),
        ("sh:path ex:knows , ex:parent ; sh:maxCount 1", "sh:path has 2 values, <.*knows> and <.*parent>; keep one"),
    ):
        with pytest.raises(CardkgeError, match=what):
            read_shapes(tmp_path, f"ex:S sh:targetClass ex:person ; sh:property [ {text} ] .")
    with pytest.raises(CardkgeError, match="owl:maxCardinality has 2 values"):
        read_shapes(tmp_path, "ex:person rdfs:subClassOf [ owl:onProperty ex:knows ; owl:maxCardinality 2, 3 ] .")


@pytest.mark.parametrize("value, off", [("true", 1), ('"1"^^xsd:boolean', 1), ("false", 0), ('"0"^^xsd:boolean', 0)])
def test_a_shape_that_is_switched_off_says_nothing(tmp_path, value, off):
    text = """ex:S sh:targetClass ex:person ; sh:deactivated {} ; sh:node ex:T .
    ex:T sh:property [ sh:path ex:knows ; sh:maxCount 1 ] ."""
    found, notes = owl(tmp_path, text.format(value))
    assert (found, notes) == (([], [NO_BOUND]) if off else ([("ex:knows", 0, 1, "ex:person")], []))
    text = """ex:S sh:targetClass ex:person ; sh:property [ sh:path ex:knows ; sh:qualifiedMaxCount 4 ;
        sh:qualifiedValueShape [ sh:class ex:person ] ] ,
        [ sh:path ex:knows ; sh:class ex:person ; sh:deactivated {} ] ."""
    assert owl(tmp_path, text.format(value))[0] == ([] if off else [("ex:knows", 0, 4, "ex:person")])


def test_qualified_maxima_of_owl(tmp_path):
    text = """ex:person rdfs:subClassOf
        [ owl:onProperty ex:knows ; owl:qualifiedCardinality 2 ; owl:onClass ex:person ] . {}"""
    found, notes = read_shapes(tmp_path, text.format(""))
    assert rows(found) == [("ex:knows", 2, INF, "ex:person")] and "qualified maximum of ex:knows" in notes[0]
    found, notes = read_shapes(tmp_path, text.format("ex:knows rdfs:range ex:person ."))
    assert rows(found) == [("ex:knows", 2, 2, "ex:person")] and notes == []


@pytest.mark.parametrize("standard", ["shacl", "owl"])
@pytest.mark.parametrize("prefixes", [{}, {"ex": EX}])
def test_convert_goes_both_ways(tmp_path, standard, prefixes):
    pytest.importorskip("pyoxigraph")
    names = ("ex:knows", "ex:has part/of") if prefixes else ("knows", "has part 50%")
    text = f"{names[0]}\t0\t2\n^{names[0]}\t1\tinf\n{names[1]}\t3\t3\tBjörn's class\n^{names[1]}\t0\t4\t{names[0]}\n"
    source = written(tmp_path, text)
    rdf.write_prefixes(tmp_path / "prefixes.tsv", rdf.Prefixes(prefixes))
    convert(source, tmp_path / "bounds.ttl", standard=standard)
    assert ("sh:maxCount 2" if standard == "shacl" else "owl:maxCardinality") in (tmp_path / "bounds.ttl").read_text()
    of_graph = Vocabulary(["e"], list(names), Types(["Björn's class", names[0]], [(0, 0)]), rdf.Prefixes(prefixes))
    found, notes = read_files([tmp_path / "bounds.ttl"], of_graph)
    assert notes == []
    assert sorted(rows(found), key=str) == sorted(rows(read_tsv(source)), key=str)


def test_data_that_supports_no_maximum_is_told(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a\tr\tb\n")
    shown = ok("mine", "--data", tmp_path, "--confidence", 0.95).stdout.splitlines()
    assert shown == ["the data supports no maximum; a lower --confidence, --likelihood or --min-support asks for less"]


def test_convert_names_the_file_that_it_replaces(tmp_path):
    source, target = written(tmp_path, "r\t0\t1\n"), tmp_path / "out.tsv"
    for said in (False, True):
        result = ok("bounds", "convert", source, target)
        assert result.stdout == f"{target}: 1 bound\n"
        assert (f"{target}: the file that was there is replaced" in result.stderr) == said
    assert "is the file that is read" in one_error(invoke("bounds", "convert", source, source))
    (tmp_path / "empty.tsv").write_text("")
    assert "empty.tsv: no bound in it" in one_error(invoke("bounds", "convert", tmp_path / "empty.tsv", target))
    assert target.read_text() == "r\t0\t1\n"


def test_rdf_becomes_tsv_with_the_names_of_the_file(tmp_path):
    pytest.importorskip("pyoxigraph")
    source = written(tmp_path, PREFIXES + SHAPES, "shapes.ttl")
    bounds, notes = convert(source, tmp_path / "bounds.tsv")
    assert "ex:parent\t1\t2\tex:person\n" in (tmp_path / "bounds.tsv").read_text() and len(bounds) == 6 and notes == []


def test_numbers_that_are_no_counts_are_rounded_inwards(tmp_path):
    pytest.importorskip("pyoxigraph")
    _, notes = convert(written(tmp_path, "r\t0.5\t2.5\n"), tmp_path / "out.ttl")
    assert notes == ["bounds that are not whole numbers were rounded inwards"]
    (found,) = shacl.read_rdf(tmp_path / "out.ttl")[0]
    assert (found.lower, found.upper) == (1, 2)
    with pytest.raises(CardkgeError, match=r"bounds are written as TSV or Turtle"):
        convert(tmp_path / "bounds.tsv", tmp_path / "out.nt")


# --- mining


def counted(counts, relation=0, inverse=False):
    """Triples: for each i, counts[i] subjects with i objects."""
    triples, subject = [], 100
    for i, number in counts.items():
        for _ in range(number):
            subject += 1
            triples += [(o, relation, subject) if inverse else (subject, relation, o) for o in range(i)]
    return np.array(triples)


def hoeffding(exactly, at_least, confidence):
    return exactly / at_least - math.sqrt(math.log(1 / (1 - confidence)) / (2 * at_least))


def test_significant_maxima_by_hand():
    """1,000 subjects with one object, 500 with two, 3 with more: two is the maximum, though the largest is 9."""
    triples = counted({1: 1000, 2: 500, 4: 2, 9: 1})
    (found,) = [
        m for m in bound_files.significant_maxima(triples, 2000, 1, confidence=0.95, likelihood=0.9) if not m.inverse
    ]
    assert (found.relation, found.kind, found.upper) == (0, None, 2)
    assert (found.subjects, found.support, found.largest) == (1503, 503, 9)
    assert found.likelihood == 500 / 503 and math.isclose(found.bound, hoeffding(500, 503, 0.95))
    assert math.isclose(found.bound, 0.9394659, abs_tol=1e-7)  # by hand: 0.9940358 - 0.0545699
    swapped = bound_files.significant_maxima(triples[:, [2, 1, 0]], 2000, 1, confidence=0.95, likelihood=0.9)
    assert [m.upper for m in swapped if m.inverse] == [2]
    for options in ({"likelihood": 0.95}, {"min_support": 504}, {"confidence": 0.9999}):
        maxima = bound_files.significant_maxima(triples, 2000, 1, **{"confidence": 0.95, "likelihood": 0.9, **options})
        assert not [m for m in maxima if not m.inverse]


def test_few_subjects_support_no_maximum():
    assert bound_files.significant_maxima(counted({1: 10}), 200, 1) == []


def test_maxima_of_classes_are_reported_where_they_say_more():
    triples = np.concatenate([counted({2: 400}), counted({1: 400}) + np.array([400, 0, 0])])
    triples = triples[(triples[:, 0] < 900)]
    types = Types(["two", "one"], [(e, 0) for e in range(101, 501)] + [(e, 1) for e in range(501, 901)])
    found = [m for m in bound_files.significant_maxima(triples, 2000, 1, types) if not m.inverse]
    assert [(m.kind, m.upper, m.subjects) for m in found] == [(None, 2, 799), (1, 1, 399)]
    bounds = bound_files.maxima_as_bounds(found, ["r"], types)
    assert rows(bounds) == [("r", 0, 2, None), ("r", 0, 1, "one")]


def test_lines_that_end_in_carriage_returns_are_named(tmp_path):
    path = written(tmp_path, "knows\t0\t1\rparent\t0\t2\r")
    with pytest.raises(CardkgeError, match=r"bounds\.tsv:1: a carriage return inside the line; save .* end in LF"):
        read_tsv(path)
    path = written(tmp_path, "anna\tperson\rbob\tperson\r", "types.tsv")
    with pytest.raises(CardkgeError, match=r"types\.tsv:1: a carriage return inside the line"):
        bounds.read_types(path, ["anna"])


def test_bounds_need_a_whole_number_between(tmp_path):
    with pytest.raises(CardkgeError, match=r"bounds\.tsv:2: no whole number lies between lower 0\.5 and upper 0\.7"):
        read_tsv(written(tmp_path, "knows\t0.5\t1\nparent\t0.5\t0.7\n"))
    with pytest.raises(CardkgeError, match=r"no number is left between .*:1\) and .*:2\); correct one of them"):
        read_files([written(tmp_path, "knows\t0.5\t1.5\nknows\t1.2\t3\tperson\n")], graph())
    with pytest.raises(CardkgeError, match=r"no whole number lies within knows 0\.5 to 0\.7; correct it"):
        GraphBounds([Bound("knows", 0.5, 0.7)], ["knows"])
