"""Numbers of single heads: `import --number`, `--number-at-least`."""

import pytest
from click.testing import CliRunner

from cardkge import CardkgeError
from cardkge_tools.graph.exchange import ImportOptions, import_graph
from cardkge_tools.graph.sources import whole_number
from cli import main

XSD = "http://www.w3.org/2001/XMLSchema#"
TABLE = "anna\tchild\tbob\nanna\tchildren\t3\nbob\tchild\tcarl\nbob\tchildren\t1\n"
EXACT = ("children", "child", False)


def imported(tmp_path, name, text, *numbers, bounds=(), **options):
    """(Imported, lines of triples.tsv, lines of bounds.tsv) of one file with this text."""
    (tmp_path / name).write_text(text)
    out = tmp_path / name.partition(".")[0]
    result = import_graph([tmp_path / name], out, ImportOptions(numbers=numbers, **options), bounds)
    return result, *((out / file).read_text().splitlines() for file in ("triples.tsv", "bounds.tsv"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[
            ("3", 3),
            ("3.0", 3),
            (" 3 ", 3),
            ("+3", 3),
            ("0", 0),
            ("3e2", 300),
            ('"3"', 3),
            ("-0", 0),
            ("2147483648", 2**31),
        ],
        *[(f'"3"^^<{XSD}integer>', 3), (f'"3.0"^^<{XSD}decimal>', 3), (f'"3"^^<{XSD}nonNegativeInteger>', 3)],
        *[(f'"3.0E0"^^<{XSD}double>', 3), (f'"3"^^<{XSD}unsignedInt>', 3), (f'"03"^^<{XSD}integer>', 3)],
        *[
            (text, None)
            for text in ("-1", "3.5", "three", "", "inf", "nan", "1e999", "1e300", "2147483649", "3_0", "0x3", "\u0663")
        ],
        *[('"3"@en', None), (f'"3"^^<{XSD}date>', None), (f'"-1"^^<{XSD}integer>', None), ('"3"^^<http://e/m>', None)],
    ],
)
def test_what_says_a_whole_number(text, number):
    assert whole_number(text) == number


def test_literals_become_bounds_of_their_subjects(tmp_path):
    pytest.importorskip("pyoxigraph")
    text = """@prefix ex: <http://example.org/> . @prefix v: <http://example.org/vocabulary/> .
    @prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
    ex:anna ex:child ex:bob ; v:children 3 . ex:bob ex:child ex:carl ; v:children "1"^^xsd:int .
    ex:carl v:children 2.0 ; ex:staff 7 ; ex:grandchildren 9 . ex:lonely v:children 4 .
    ex:bob v:children -1, 3.5, "many", "5"@en . ex:anna ex:name "Anna" ; ex:staff 12 ."""
    numbers = ("v:children", "ex:child", False), ("http://example.org/staff", "^ex:child", True)
    result, triples, bounds = imported(tmp_path, "g.ttl", text, *numbers)
    assert triples == ["ex:anna\tex:child\tex:bob", "ex:bob\tex:child\tex:carl"]
    assert bounds == [
        *("ex:child\t3\t3\t\tex:anna", "ex:child\t1\t1\t\tex:bob", "ex:child\t2\t2\t\tex:carl"),
        *("^ex:child\t12\tinf\t\tex:anna", "^ex:child\t7\tinf\t\tex:carl"),
    ]
    assert result.bounds == 5 and result.notes == []
    assert result.counts == {
        "literals left out": 2,  # a name, and 9, though its property ends alike
        "literals of --number that are no whole number from 0 to 2^31 left out": 4,
        "numbers of heads that have no facts left out": 1,
    }
    _, triples, again = imported(tmp_path, "h.ttl", text, *numbers, literals="keep")
    assert sum("hildren\t" in line for line in triples) == 9  # they are facts as well
    assert {*again} - {*bounds} == {"ex:child\t4\t4\t\tex:lonely"} and {*bounds} < {*again}


def test_of_several_numbers_the_largest_holds(tmp_path):
    """anna: 3 exactly, 4 at least; bob: 1 exactly, 1 at least; carl: 5 twice, at least 2."""
    text = TABLE + "anna\tsons\t4\nbob\tsons\t1\ncarl\tchildren\t5\ncarl\tchildren\t5\ncarl\tsons\t2\n"
    result, triples, bounds = imported(tmp_path, "g.tsv", text, EXACT, ("sons", "child", True))
    assert triples == ["anna\tchild\tbob", "bob\tchild\tcarl"]
    assert bounds == ["child\t4\tinf\t\tanna", "child\t1\t1\t\tbob", "child\t5\t5\t\tcarl"]
    assert result.notes == ["2 heads have several numbers in one relation; of each the largest holds"]


def test_columns_of_tables(tmp_path):
    text = "person,relation,other,children\nanna,child,bob,3\nbob,child,carl,\ncarl,child,dora,1.5\n"
    how = {"header": True, "columns": "person,relation,other"}
    result, triples, bounds = imported(tmp_path, "g.csv", text, EXACT, **how)
    assert triples == ["anna\tchild\tbob", "bob\tchild\tcarl", "carl\tchild\tdora"] and bounds == [
        "child\t3\t3\t\tanna"
    ]
    assert list(result.counts.values()) == [1] and result.notes == []
    text = text.partition("\n")[2]
    *_, bounds = imported(tmp_path, "h.csv", text, ("4", "child", True), columns="1,2,3")
    assert bounds == ["child\t3\tinf\t\tanna"]


def test_numbers_stand_beside_a_file_of_bounds(tmp_path):
    """One that says the same is one bound, another number an error; a wider bound that it contradicts is overruled."""
    (tmp_path / "b.tsv").write_text("child\t0\t2\nchild\t3\t3\t\tanna\n")
    result, _, bounds = imported(tmp_path, "g.tsv", TABLE, EXACT, bounds=[tmp_path / "b.tsv"])
    assert bounds == ["child\t0\t2", "child\t3\t3\t\tanna", "child\t1\t1\t\tbob"] and result.bounds == 3
    (tmp_path / "b.tsv").write_text("child\t2\t2\t\tanna\n")
    with pytest.raises(CardkgeError, match=r"twice .* of anna 2 to 2 \(.*b.tsv:1\) and .* 3 to 3 \(--number\)"):
        imported(tmp_path, "new.tsv", TABLE, EXACT, bounds=[tmp_path / "b.tsv"])
    assert not (tmp_path / "new" / "triples.tsv").exists()


def test_a_property_or_a_relation_that_is_not_there(tmp_path):
    result, triples, _ = imported(tmp_path, "g.tsv", TABLE, ("sons", "child", True))
    assert len(triples) == 4  # without --number they are facts
    assert result.notes == ["--number-at-least sons=child: no literal of this property, and no column of this name"]
    with pytest.raises(CardkgeError, match=r"^--number children=childs: unknown relation 'childs'"):
        imported(tmp_path, "new.tsv", TABLE, ("children", "childs", False))


@pytest.mark.parametrize("value", ["children", "=child", "children=", ":=child", "v:=child"])
def test_wrong_usage(tmp_path, value):
    (tmp_path / "g.tsv").write_text(TABLE)
    result = CliRunner().invoke(main, ["import", str(tmp_path / "g.tsv"), "--out", str(tmp_path), "--number", value])
    assert result.exit_code == 2 and "expected PROPERTY=RELATION" in result.output


def test_the_command(tmp_path):
    (tmp_path / "g.tsv").write_text(TABLE + "anna\tsons\t2\n")
    numbers = "--number", "children=child", "--number-at-least", "sons=child"
    result = CliRunner().invoke(main, ["import", str(tmp_path / "g.tsv"), "--out", str(tmp_path / "out"), *numbers])
    assert result.exit_code == 0 and "2 bounds" in result.output
    assert (tmp_path / "out" / "bounds.tsv").read_text() == "child\t3\t3\t\tanna\nchild\t1\t1\t\tbob\n"
