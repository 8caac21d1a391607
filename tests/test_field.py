"""Faults that were seen in use, each with a small case and what must come of it."""

import errno
import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import invoke, thorough

import cardkge
from cardkge import CardkgeError
from cardkge_tools.answers import figures
from cardkge_tools.engine.batches import cpu_quota
from cardkge_tools.graph import rdf, spelling
from cardkge_tools.graph.exchange import ImportOptions, import_graph
from cardkge_tools.graph.splitting import split_folder
from cardkge_tools.shell import files, terminal, workers

LINES = ["anna\tknows\tbob", "bob\tknows\tcleo", "cleo\tknows\tanna", "anna\tlikes\ttea", "bob\tlikes\ttea"]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "data", LINES, ["cleo\tlikes\ttea"], ["anna\tknows\tcleo"])


def write(folder, *splits):
    folder.mkdir()
    for name, lines in zip(("train", "valid", "test"), splits, strict=True):
        (folder / f"{name}.tsv").write_bytes("".join(line + "\n" for line in lines).encode())
    return folder


def trained(folder, out, *options):
    data = cardkge.load_dataset(folder)
    run = cardkge.new_run(cardkge.Settings(data=str(folder), dim=4, epochs=2, batches=2), data)
    cardkge.train(run, data)
    cardkge.save_run(run, out)
    return run


# --- a user's own data


STATEMENTS = [
    "<http://a/x>\t<http://a/p>\t<http://a/y> .",
    "<http://a/x> <http://a/p> <http://a/y> .",
    "<http://a/x>\t<http://a/p>\t<http://a/y>.",
    "_:x\t<http://a/p>\t_:y .  # a comment",
    '<http://a/x>\t<http://a/p>\t"a \\" b ."@en .',
    '<http://a/x>\t<http://a/p>\t"1"^^<http://a/int> <http://a/graph> .',
]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("name", ["train.tsv", "train.txt", "train.txt.gz"])
def test_n_triples_are_refused(tmp_path, statement, name):
    """Wherever they stand, in the first line or the last, and whatever the file is called."""
    folder = write(tmp_path / "a", LINES, LINES[:1], LINES[:1])
    (folder / "train.tsv").unlink()
    text = "".join(line + "\n" for line in [*LINES, statement])
    (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    ending = ".nt" + ".gz" * name.endswith(".gz")
    expected = (
        rf"a/{name}:6: a statement of N-Triples, .*: name it train{ending}, and `cardkge import train{ending} --out"
    )
    with pytest.raises(CardkgeError, match=expected):
        cardkge.load_dataset(folder)
    (tmp_path / f"g{name[5:]}").write_bytes((folder / name).read_bytes())
    with pytest.raises(CardkgeError, match=rf":6: a statement of N-Triples, .*: name it g{ending}"):
        import_graph([tmp_path / f"g{name[5:]}"], tmp_path / "out")
    (folder / name).rename(folder / f"triples{name[5:]}")
    with pytest.raises(CardkgeError, match=r":6: a statement of N-Triples"):
        split_folder(folder, tmp_path / "split")


def test_names_that_end_in_full_stops(tmp_path):
    lines = [f"{line} ." for line in LINES]
    with pytest.raises(
        CardkgeError, match=r"train\.tsv:1: the last field of every line ends in ' \.', as in N-Triples"
    ):
        cardkge.load_dataset(write(tmp_path / "a", lines, lines, lines))
    lines = [*LINES, "anna\tworks_at\tAcme Inc.", "<http://a/x>\t<http://a/p>\t<http://a/y>", "bob\tlikes\t."]
    assert cardkge.load_dataset(write(tmp_path / "b", lines, LINES[:1], LINES[:1])).n_relations == 4


@pytest.mark.parametrize(
    "text, what",
    [
        (
            "@prefix e: <http://e/> .\ne:a e:p e:b .\n",
            "looks like Turtle: name it train.ttl, and `cardkge import train.ttl",
        ),
        ('<?xml version="1.0"?>\n<rdf:RDF>\n', "looks like RDF/XML: name it train.rdf"),
        ('{"@context": {}}\n', "looks like JSON-LD: name it train.jsonld"),
        ("a,p,b\nb,p,c\n", "with ',' between: `cardkge import .*train.tsv --delimiter ',' --out DIR` reads it"),
        ("a p b\nb p c\n", "with ' ' between: `cardkge import"),
    ],
)
def test_other_formats_are_recognised(tmp_path, text, what):
    folder = write(tmp_path / "a", LINES, LINES[:1], LINES[:1])
    (folder / "train.tsv").write_text(text)
    with pytest.raises(CardkgeError, match=rf"train\.tsv:1: expected 3 names with tabs between, found 1: .*{what}"):
        cardkge.load_dataset(folder)


@pytest.mark.parametrize(
    "content, where, what",
    [
        ("a\tp\tb\nBj\u00f6rn\tp\tb\n".encode("latin1"), 2, "byte 0xf6, .*; convert it, say `iconv -f LATIN1 -t UTF-8"),
        ("a\tp\tb\n".encode("utf-16"), 1, "byte 0xff, .*; convert it, say `iconv -f UTF-16 -t UTF-8"),
    ],
)
@pytest.mark.parametrize("name", ["g.tsv", "g.csv"])
def test_what_to_do_with_bytes_that_are_not_utf_8(tmp_path, content, where, what, name):
    (tmp_path / name).write_bytes(content.replace(b"\t", b"," if name == "g.csv" else b"\t"))
    with pytest.raises(CardkgeError, match=rf"{name}:{where}: not UTF-8 \({what} .*{name} > NEW`"):
        import_graph([tmp_path / name], tmp_path / "out")


def test_names_that_look_alike(tmp_path):
    composed, decomposed = "Bj\u00f6rn", "Bjo\u0308rn"
    data = write(
        tmp_path / "a", [*LINES, f"{composed}\tknows\tanna", f"{decomposed}\tknows\tbob"], LINES[:1], LINES[:1]
    )
    (warning,) = [w for w in cardkge.load_dataset(data).warnings if "Unicode" in w]
    assert "2 names, 1 when written alike, such as 'Bj\\xf6rn' and 'Bjo\\u0308rn'" in warning
    known = spelling.Known(["anna", composed], rdf.Prefixes(), "entity")
    assert known.find(composed) == (composed, None)
    found, note = known.find(decomposed)
    assert found == composed and note == r"entity 'Bjo\u0308rn' is not in the data; 'Bj\xf6rn', which looks alike, is"
    with pytest.raises(CardkgeError, match=r"unknown entity 'ana'; .*; did you mean 'anna'\?"):
        spelling.id_of(["anna"], "ana", "entity")


@pytest.mark.parametrize("header", ["subject\tpredicate\tobject", "head\trelation\ttail", "Source\tType\tTarget"])
def test_a_header_is_noticed(tmp_path, header):
    folder = write(tmp_path / "a", [header, *LINES], [header, *LINES[:1]], LINES[:1])
    said = f"the first line of train, valid looks like a header ({', '.join(map(repr, header.split(chr(9))))}), but is"
    assert any(w.startswith(said) for w in cardkge.load_dataset(folder).warnings)


def test_a_header_of_other_words_is_noticed(tmp_path):
    """Names that stand nowhere but in first lines; those of a triple that has one name elsewhere are a triple's."""
    header = "person\twhat\tthing"
    folder = write(tmp_path / "a", [header, *LINES], [header, *LINES[:3]], LINES[:1])
    (warning,) = [w for w in cardkge.load_dataset(folder).warnings if "header" in w]
    assert warning == (
        "the first line of train, valid looks like a header ('person', 'what', 'thing'), but is read as a triple;"
        " remove it, or use `cardkge import FILE --header`"
    )
    for first in ("person\tknows\tthing", "person\twhat\ttea", "anna\twhat\tthing"):
        (folder / "train.tsv").write_text("".join(line + "\n" for line in [first, *LINES]))
        (folder / "valid.tsv").write_text(LINES[0] + "\n")
        assert not any("header" in w for w in cardkge.load_dataset(folder).warnings)


def test_import_and_split_notice_headers_and_look_alikes_too(tmp_path):
    lines = ["person,what,thing", *(line.replace("\t", ",") for line in LINES), "anna,knows,bob "]
    (tmp_path / "g.csv").write_text("".join(line + "\n" for line in lines))
    (tmp_path / "more.tsv").write_text("".join(line + "\n" for line in LINES))
    notes = import_graph([tmp_path / "g.csv", tmp_path / "more.tsv"], tmp_path / "out").notes
    assert [note.partition(" looks")[0] for note in notes[:1]] == [f"the first line of {tmp_path / 'g.csv'}"]
    assert "2 names, 1 when written alike, such as 'bob' and 'bob '" in notes[1] and len(notes) == 2
    warnings = split_folder(tmp_path / "out", tmp_path / "split", (0.2, 0.2)).warnings
    assert [w.partition(" (")[0] for w in warnings[:1]] == ["the first line of triples.tsv looks like a header"]
    assert import_graph([tmp_path / "g.csv"], tmp_path / "new", ImportOptions(header=True)).notes == notes[1:]


def test_data_show_counts_look_alikes(tmp_path):
    names = ["Bj\u00f6rn", "Bjo\u0308rn", " Bj\u00f6rn", "anna", "anna "]
    lines = [f"{name}\tknows\tbob" for name in names]
    folder = write(tmp_path / "a", lines, LINES[:1], ["bob\tknows \tanna"])
    found = json.loads(invoke("data", "show", folder, "--json", "-").stdout)["look_alikes"]
    assert found["entities"] == {"names": 5, "forms": 2, "example": names[:3]}
    assert found["relations"] == {"names": 2, "forms": 1, "example": ["knows", "knows "]}
    table = invoke("data", "show", folder).stdout
    assert re.search(r"entities +5 +2 +'Bj\\xf6rn' +'Bjo\\u0308rn'\n", table)


def test_lines_of_tabs_are_counted(tmp_path):
    data = cardkge.load_dataset(write(tmp_path / "a", [*LINES, "\t\t", "\t\t", ""], LINES[:1], LINES[:1]))
    assert len(data.train) == 5 and "blank lines skipped: 3 of train" in data.warnings


def test_triples_in_valid_and_test_are_counted(tmp_path):
    data = cardkge.load_dataset(write(tmp_path / "a", LINES, ["anna\tknows\tcleo"], ["anna\tknows\tcleo", *LINES[:1]]))
    assert "in both valid, which chooses the epoch, and test: 1 of 2 test triples" in data.warnings


def test_what_to_do_with_a_folder_that_is_no_data_set(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "triples.tsv").write_text("a\tp\tb\n")
    with pytest.raises(CardkgeError, match=r"`cardkge split .*one --out DIR` makes them"):
        cardkge.load_dataset(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "train2id.txt").write_text("0\n")
    with pytest.raises(CardkgeError, match=r"train2id.txt is OpenKE's format: `cardkge import"):
        cardkge.load_dataset(tmp_path / "two")


def test_reordered_lines_are_the_same_data(folder, tmp_path):
    run = trained(folder, tmp_path / "run")
    before = invoke("evaluate", tmp_path / "run", "--json", "-").stdout
    (folder / "train.tsv").write_text("".join(line + "\n" for line in reversed(LINES)))
    after = invoke("evaluate", tmp_path / "run", "--json", "-")
    assert after.stdout == before and "not the triples" not in after.stderr
    other = cardkge.load_dataset(folder)
    with pytest.raises(CardkgeError, match=r"their ids stand for other names than the run's; align_dataset"):
        cardkge.evaluate(cardkge.load_run(tmp_path / "run").best_model(), other.test, other.known)
    aligned = cardkge.align_dataset(other, run)
    found = cardkge.evaluate(run.model, aligned.test, aligned.known)["filtered"]["both"]
    assert found == json.loads(before)["filtered"]["both"]
    resumed = invoke("train", "--resume", "--out", tmp_path / "run", "--epochs", 3)
    assert resumed.exit_code == 0 and "the lines are in another order now" in resumed.stderr


def test_unknown_names_of_new_data_are_counted(folder, tmp_path):
    trained(folder, tmp_path / "run")
    (folder / "test.tsv").write_text("anna\tknows\tcleo\nzoe\tknows\tanna\nyan\tknows\tzoe\nxi\tlikes\twu\n")
    failed = invoke("evaluate", tmp_path / "run")
    assert failed.exit_code == 1 and "unknown to the run: 4 entities ('zoe', 'yan', 'xi', ...)" in failed.stderr
    result = invoke("evaluate", tmp_path / "run", "--skip-unknown", "--json", "-")
    assert (
        "left out, for the run does not know 4 entities ('zoe', 'yan', 'xi', ...): 3 of 4 test triples" in result.stderr
    )
    assert json.loads(result.stdout)["filtered"]["triples"] == 1


# --- seeing


def test_evaluate_by_side_and_relation(folder, tmp_path):
    trained(folder, tmp_path / "run")
    report = json.loads(
        invoke(
            "evaluate", tmp_path / "run", "--split", "train", "--by", "side", "--by", "relation", "--json", "-"
        ).stdout
    )
    parts = report["filtered"]["relations"]
    assert {name: part["triples"] for name, part in parts.items()} == {"knows": 3, "likes": 2}
    macro = report["filtered"]["macro"]["head"]["mrr"]
    assert macro == pytest.approx((parts["knows"]["head"]["mrr"] + parts["likes"]["head"]["mrr"]) / 2)
    assert report["filtered"]["both"]["mrr"] == pytest.approx(
        (3 * parts["knows"]["mrr"] + 2 * parts["likes"]["mrr"]) / 5
    )
    assert report["filtered"]["candidates"] == {"mean": 4, "least": 4, "most": 4}
    table = invoke("evaluate", tmp_path / "run", "--split", "train", "--by", "side", "--by", "relation").stdout
    assert re.search(r"filtered +likes +tail +2 ", table) and "4 candidates" in table


def test_candidates_of_the_range(folder, tmp_path):
    """`likes` has one tail in train: among its range tea is always first."""
    trained(folder, tmp_path / "run")
    options = ["--split", "valid", "--by", "side", "--candidates", "range", "--setting", "raw", "--json", "-"]
    raw = json.loads(invoke("evaluate", tmp_path / "run", *options).stdout)["raw"]
    assert raw["tail"]["mean_rank"] == 1 and raw["head"]["mean_rank"] <= 3
    assert raw["candidates"] == {"mean": 1.5, "least": 1, "most": 2}


def test_one_triple(folder, tmp_path):
    run = trained(folder, tmp_path / "run")
    report = json.loads(
        invoke(
            "predict", tmp_path / "run", "--head", "anna", "--relation", "knows", "--tail", "bob", "--json", "-"
        ).stdout
    )
    score = float(run.model.score([0], [0], [1])[0])
    assert report["score"] == pytest.approx(score, rel=1e-5) and report["known"] == "train"
    assert report["probability"] == pytest.approx(1 / (1 + math.exp(-score)), rel=1e-5)
    data = cardkge.load_dataset(folder)
    ranks = cardkge.rank_triples(run.model, np.array([[0, 0, 1]]), data.known)
    assert [report["filtered"]["head"], report["filtered"]["tail"]] == ranks["filtered"][0].tolist()


@pytest.mark.parametrize("target", ["-", "/dev/stdout"])
def test_json_on_stdout_is_all_there_is(folder, tmp_path, target):
    trained(folder, tmp_path / "run")
    for arguments in (
        ("data",),
        ("calibrate", tmp_path / "run"),
        ("history", tmp_path / "run"),
        ("evaluate", "--sets", tmp_path / "run"),
        ("check", "distmult"),
        ("tune", "--data", folder, "--dim", 2, "--epochs", 1, "--grid", "seed=0,1", "--out", tmp_path / "tune"),
        ("reproduce", "datasets", "--data", "families"),
        ("oracle", "check", Path(cardkge.__file__).parent / "data" / "oracle-1.json"),
        ("split", folder, "--valid", 0.2, "--test", 0.2, "--out", tmp_path / "split", "--force"),
        ("import", folder / "train.tsv", "--out", tmp_path / "graph", "--force"),
        ("evaluate", tmp_path / "run"),
        ("violations", tmp_path / "run"),
        ("predict", tmp_path / "run", "--head", "anna", "--relation", "knows"),
        ("mine", "--data", folder),
        ("mine", "--data", folder, "--confidence", 0.9),
        ("data", "show", folder),
    ):
        if target == "-":
            json.loads(invoke(*arguments, "--json", target).stdout)
    assert not os.path.exists("-")


@pytest.mark.parametrize(
    "name, text",
    [
        ("anna", "anna"),
        ("Björn Ek", "Björn Ek"),
        (" anna", "' anna'"),
        ("a\x1b[31mb", r"'a\x1b[31mb'"),
        ("a\u202eb", r"'a\u202eb'"),
        ("a\u2028b", r"'a\u2028b'"),
        ("日本", "日本"),
        ("x" * 200, "x" * 97 + "..."),
    ],
)
def test_names_are_shown_as_they_are(name, text):
    assert terminal.shown(name) == text


def test_a_long_name_makes_a_short_message(folder, tmp_path):
    """Wherever a user's text comes into a message."""
    trained(folder, tmp_path / "run")
    long = "x" * 100_000
    (tmp_path / "queries").write_text(f"{long}\tknows\n")
    (tmp_path / "bounds.tsv").write_text(f"knows{long}\t0\t1\n")
    (tmp_path / "facts.csv").write_text(f"{long},p\n")
    for arguments in (
        ("predict", tmp_path / "run", "--head", long, "--relation", "knows"),
        ("predict", tmp_path / "run", "--head", "anna", "--relation", long),
        ("predict", tmp_path / "run", "--queries", tmp_path / "queries"),
        ("complete", tmp_path / "run", "--relation", long),
        ("train", "--data", long, "--out", tmp_path / "new"),
        ("train", "--data", folder, "--bounds", tmp_path / "bounds.tsv", "--out", tmp_path / "new"),
        ("data", "show", long),
        ("import", tmp_path / "facts.csv", "--out", tmp_path / "new"),
        ("import", f"{long}.nt", "--out", tmp_path / "new"),
        ("import", tmp_path / "facts.csv", "--columns", long, "--out", tmp_path / "new"),
        ("split", folder, "--out", tmp_path / long),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 1 and result.stderr.startswith("error: ") and len(result.stderr) < 1100, arguments[
            :1
        ]


def test_a_name_is_found_by_its_iri_and_in_another_form(folder, tmp_path):
    prefixes = rdf.Prefixes({"ex": "http://example.org/"})
    names = ["b", "ex:a", "Bj\u00f6rn"]
    for given in ("ex:a", "http://example.org/a", "<http://example.org/a>"):
        assert spelling.id_of(names, given, "entity", prefixes) == 1
    with pytest.raises(CardkgeError, match=r"unknown entity 'http://example.org/c'"):
        spelling.id_of(names, "http://example.org/c", "entity", prefixes)
    data = write(tmp_path / "b", [*LINES, "Bj\u00f6rn\tknows\tanna"], LINES[:1], LINES[:1])
    trained(data, tmp_path / "run")
    (tmp_path / "queries").write_text("Bjo\u0308rn\tknows\n?\tknows\tanna \n")
    result = invoke("predict", tmp_path / "run", "--queries", tmp_path / "queries", "--top", 1)
    assert result.stdout.startswith("Bj\u00f6rn\tknows\t")
    assert result.stdout.splitlines()[1].split("\t")[2] == "anna" and result.stderr.count("which looks alike, is") == 2


def test_progress_is_on_stderr_and_the_objective_a_mean_per_example(folder, tmp_path):
    for batches in (1, 5):
        out = tmp_path / str(batches)
        result = invoke(
            "train",
            "--data",
            folder,
            "--dim",
            2,
            "--epochs",
            1,
            "--batches",
            batches,
            "--learning-rate",
            1e-9,
            "--out",
            out,
        )
        assert "epoch 1/1" in result.stderr and "epoch" not in result.stdout
        shown = float(re.search(r"objective ([0-9.]+)", result.stderr)[1])
        assert abs(shown - math.log(2)) < 0.3  # not 5 or 15 times that
        history = cardkge.load_run(out).history[0]["objective"]
        assert shown == pytest.approx(history * batches / 15, abs=1e-4)  # the sum of a step stays in the file


def test_a_run_at_chance_is_said(folder, tmp_path):
    options = ["--dim", 2, "--epochs", 1, "--learning-rate", 1e-9]
    result = invoke("train", "--data", folder, *options, "--out", tmp_path / "run")
    assert ("0.6931 is chance" in result.stderr) == (
        cardkge.load_run(tmp_path / "run").history[0]["loss"] * 5 / 15 >= 0.98 * math.log(2)
    )


def test_softmax_at_chance_is_said(folder, tmp_path):
    """ln N, and where the relation is asked for ln 2R of it, times its weight."""
    options = ["--loss", "softmax", "--dim", 2, "--epochs", 1, "--learning-rate", 1e-9, "--relation-weight", 3]
    result = invoke("train", "--data", folder, *options, "--out", tmp_path / "run")
    run = cardkge.load_run(tmp_path / "run")
    chance = math.log(len(run.entities)) + 3 * math.log(2 * len(run.relations))
    assert f"{chance:.4f} is chance" in result.stderr


def test_one_negative_is_warned_of(folder, tmp_path):
    result = invoke("train", "--data", folder, "--epochs", 1, "--dim", 2, "--negatives", 1, "--out", tmp_path / "run")
    assert "--negatives 1 corrupts tails alone" in result.stderr


def test_bounds_without_a_bound_are_said(folder, tmp_path):
    (tmp_path / "bounds.tsv").write_text("\n")
    result = invoke(
        "train",
        "--data",
        folder,
        "--epochs",
        1,
        "--dim",
        2,
        "--bounds",
        tmp_path / "bounds.tsv",
        "--out",
        tmp_path / "run",
    )
    assert "bounds.tsv: no bound in it for this graph" in result.stderr


# --- runs


def test_a_final_run_has_all_facts(folder, tmp_path):
    trained(folder, tmp_path / "run")
    result = invoke("train", "--final", tmp_path / "run", "--out", tmp_path / "final")
    assert result.exit_code == 0 and "trained on every triple" in result.stdout
    final = cardkge.load_run(tmp_path / "final")
    assert final.settings.final and final.epoch == 2 and not (tmp_path / "final" / "metrics.json").exists()
    data = cardkge.load_dataset(folder)
    assert len(data.known) == 7
    again = cardkge.new_run(final.settings, data)
    whole = cardkge.Dataset("x", None, data.entities, data.relations, data.known.copy(), data.valid, data.test)
    cardkge.train(again, whole)
    assert again.model.params["entity"].tobytes() == final.model.params["entity"].tobytes()


def test_a_final_run_has_the_calibration_of_its_source(folder, tmp_path):
    """As it is, and whether or not training was interrupted; then `complete` answers, and `calibrate` refuses."""
    options = ["--dim", 4, "--epochs", 5, "--batches", 2, "--data", folder]
    assert invoke("train", *options, "--out", tmp_path / "run").exit_code == 0
    source = cardkge.load_run(tmp_path / "run").calibration
    assert invoke("train", "--final", tmp_path / "run", "--out", tmp_path / "final").exit_code == 0
    assert invoke("train", "--resume", "--out", tmp_path / "final", "--epochs", 7).exit_code == 0
    found = cardkge.load_run(tmp_path / "final")
    assert found.epoch == 7 and (found.calibration.parameters == source.parameters).all()
    assert (found.calibration.share == source.share).all() and found.calibration.bounds == source.bounds
    assert invoke("complete", tmp_path / "final", "--min-probability", 0, "--out", tmp_path / "new.tsv").exit_code == 0
    new = {line.rpartition("\t")[0] for line in (tmp_path / "new.tsv").read_text().splitlines()}
    assert new and not new & {*LINES, "cleo\tlikes\ttea", "anna\tknows\tcleo"}
    again = invoke("calibrate", tmp_path / "final")
    assert (
        again.exit_code == 1 and "trained on valid too, it keeps the calibration of the run it was made" in again.stderr
    )
    (tmp_path / "labelled.txt").write_text("anna\tknows\tcleo\t1\n")
    for command, *more in (["evaluate"], ["evaluate", "--sets"], ["classify", tmp_path / "labelled.txt"]):
        result = invoke(command, tmp_path / "final", *more)
        assert result.exit_code == 0 and "was trained on the facts of valid and test too" in result.stderr


def test_patience_may_be_raised(folder, tmp_path):
    options = ["--data", folder, "--dim", 2, "--epochs", 40, "--validate-every", 1, "--patience", 1]
    assert (
        "to go on raise --patience"
        in invoke("train", *options, "--learning-rate", 1e-12, "--out", tmp_path / "run").stdout
    )
    epoch = cardkge.load_run(tmp_path / "run").epoch
    assert invoke("train", "--resume", "--out", tmp_path / "run", "--patience", 5).exit_code == 0
    assert cardkge.load_run(tmp_path / "run").epoch > epoch


def test_config_and_model_of_other_data_do_not_load(folder, tmp_path):
    trained(folder, tmp_path / "run")
    other = write(tmp_path / "other", LINES[::-1], ["cleo\tlikes\ttea"], ["anna\tknows\tcleo"])
    trained(other, tmp_path / "run2")
    os.replace(tmp_path / "run2" / "config.json", tmp_path / "run" / "config.json")
    with pytest.raises(CardkgeError, match=r"of other data than config.json says; a save was cut short"):
        cardkge.load_run(tmp_path / "run")


def test_what_a_killed_save_left_is_removed(folder, tmp_path):
    trained(folder, tmp_path / "run")
    left = tmp_path / "run" / ".savingabc"
    left.mkdir()
    os.utime(left, (0, 0))
    cardkge.load_run(tmp_path / "run")
    assert not left.exists()


def test_a_grid_copied_elsewhere_is_not_trained_anew(folder, tmp_path):
    from cardkge_tools.experiments.trials import trial_name

    copy = tmp_path / "elsewhere" / "data"
    copy.parent.mkdir()
    write(copy, LINES[::-1], ["cleo\tlikes\ttea"], ["anna\tknows\tcleo"])
    names = {trial_name({"data": str(path), "model": "distmult", "seed": 0}) for path in (folder, copy)}
    assert len(names) == 1
    (copy / "test.tsv").write_text("anna\tknows\ttea\n")
    other = write(tmp_path / "other", LINES, ["cleo\tlikes\ttea"], ["anna\tknows\ttea"])
    assert trial_name({"data": str(other), "model": "distmult", "seed": 0}) not in names


def test_web_pages_and_scheduler_files_are_no_addresses():
    pytest.importorskip("distributed")
    from cardkge_tools.shell.workers import carry_out_on_cluster

    for address, what in (("http://host:8787", "the address of its web page"), ("scheduler.json", "a scheduler file")):
        with pytest.raises(CardkgeError, match=rf"{what} is not supported; give the scheduler's own, tcp://HOST:PORT"):
            carry_out_on_cluster({}, 1, address, None, "")


@pytest.mark.parametrize(
    "address, what",
    [
        ("tls://host:8786", r"--cluster tls://host:8786: tls needs certificates, which Dask's configuration names"),
        ("ucx://host:8786", r"--cluster ucx://host:8786: ucx cannot be used here \(no UCX\); give tcp://HOST:PORT"),
        ("foo://host:8786", r"foo://host:8786: no Dask scheduler answers there"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line(address, what):
    def client(address, timeout):
        raise {"tls": TypeError("ssl_context"), "ucx": TypeError("no UCX"), "foo": ValueError("foo")}[address[:3]]

    with pytest.raises(CardkgeError, match=what):
        workers.connected(client, address)


def test_a_cluster_that_is_lost_says_that_the_workers_go_on(monkeypatch):
    """A scheduler that dies does not end what its workers are at."""
    said = []
    monkeypatch.setattr(workers, "carry_out_on_cluster", lambda *arguments: said.append(arguments[-1]))
    workers.carry_out([], 1, 1, "tcp://host:1")
    assert said == ["the same command goes on from here, once what runs on the workers has ended"]


@pytest.mark.parametrize("value", ["0", "-1", "abc", "", "1.5"])
def test_a_number_of_numba_threads_that_is_none_is_one_line(monkeypatch, value):
    monkeypatch.setenv("NUMBA_NUM_THREADS", value)
    result = invoke("data", "list")
    assert result.exit_code == 1
    assert result.stderr == f"error: NUMBA_NUM_THREADS={value}: expected a number of at least 1, or none; unset it\n"


def test_wide_letters_and_marks_keep_the_columns(capsys):
    terminal.table([["日本", "1"], ["e\u0301te\u0301", "22"], ["plain", ""]], ["name", "数"], "lr")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name      数", "------  ----", "日本       1", "e\u0301te\u0301       22", "plain"]
    assert [terminal.width_of(text) for text in ("日本", "e\u0301", "ab", "ｆ", "")] == [4, 1, 2, 2, 0]


# --- the machine

KERNEL = """
import numpy as np, kernels
out = np.zeros((2, 2)); kernels.take_rows(np.arange(6.0).reshape(3, 2), np.array([2, 0], np.int32), out)
print(out.tolist())
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_training_goes_on_where_stdout_is_full(folder, tmp_path):
    """To the end, calibration too; stderr says so, unless that is full as well."""
    command = [sys.executable, Path(cardkge.__file__).parent / "cli.py", "train", "--data", folder, "--dim", "4"]
    for name, errors in (("one", subprocess.PIPE), ("both", None)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*map(str, command), "--epochs", "2", "--out", str(tmp_path / name)],
                stdout=full, stderr=errors or full, text=True,
            )  # fmt: skip
        assert done.returncode == 0 and cardkge.load_run(tmp_path / name).epoch == 2
        assert (tmp_path / name / "metrics.json").exists() and (tmp_path / name / "calibration.json").exists()
        if errors:
            assert done.stderr.count("cannot write the output (No space left on device); it goes on without") == 1


def test_a_full_disk_says_how_to_go_on(folder, tmp_path, monkeypatch):
    """How to resume where something is saved; where nothing is, what to do instead."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    options = ["--data", folder, "--dim", 4, "--batches", 2]
    first = invoke("train", *options, "--epochs", 2, "--out", tmp_path / "run")
    assert (
        first.exit_code == 1 and "run/model.npz: No space left on device; make room, or choose another" in first.stderr
    )
    assert "older file" not in first.stderr and not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert invoke("train", *options, "--epochs", 2, "--out", tmp_path / "run").exit_code == 0
    monkeypatch.setattr(files.os, "fsync", full)
    again = invoke("train", "--resume", "--out", tmp_path / "run", "--epochs", 4)
    assert again.exit_code == 1 and "train --resume --out" in again.stderr and "what was saved before" in again.stderr
    monkeypatch.undo()
    assert cardkge.load_run(tmp_path / "run").epoch == 2


@pytest.mark.parametrize("damage", [
    lambda b: b[: len(b) // 2],
    thorough(lambda b: b""), thorough(lambda b: bytes(len(b))), thorough(lambda b: b[:-9] + bytes(9)),
])  # fmt: skip
def test_a_damaged_cache_is_compiled_anew(tmp_path, damage):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(cardkge.__file__).parent)}
    command = [sys.executable, "-c", KERNEL]
    expected = "[[4.0, 5.0], [0.0, 1.0]]\n"
    assert subprocess.check_output(command, env=environment, text=True) == expected
    files = list(tmp_path.rglob("*.nb?"))
    whole = {path: path.read_bytes() for path in files}
    assert len(files) >= 2
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    assert subprocess.check_output(command, env=environment, text=True) == expected
    assert {path: len(path.read_bytes()) for path in files}.keys() == whole.keys()
    assert all(len(path.read_bytes()) > 100 for path in files)  # replaced


def test_the_quota_of_a_container(tmp_path):
    own = tmp_path / "self"
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert cpu_quota(tmp_path, own) == math.inf
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path, own) == math.inf
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path, own) == 1.5
    own.write_text("4:cpu,cpuacct:/c\n3:memory:/c\n")
    (tmp_path / "cpu,cpuacct" / "c").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "c" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu,cpuacct" / "c" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path, own) == 0.5
    assert cpu_quota(tmp_path, tmp_path / "none") == math.inf


def test_a_folder_name_of_any_bytes_can_be_a_label():
    assert figures.shortened(b"run-\xff\xfe".decode("utf-8", "surrogateescape"), 40) == "run-\ufffd\ufffd"
    japanese = "実験".encode().decode("ascii", "surrogateescape")  # as LC_ALL=C reads it
    assert figures.shortened(japanese, 40) == "実験"
