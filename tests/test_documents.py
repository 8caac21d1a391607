"""Every command that a document names is one that the program has, with options that it takes; every link leads
somewhere."""

import json
import re
import shlex

import click
import pytest
from conftest import ROOT, ok, write_ring

import cli
from cardkge_tools.experiments.trials import plan_trials, read_grid
from cardkge_tools.shell.options import PAPER_TABLES

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("course/**/*.md")])
SEARCHES = sorted(ROOT.glob("docs/searches/*.toml"))
NO_COMMAND = {"COMMAND", "TABLE", "...", ""}  # of text that speaks of commands in general


def commands_of(text):
    """What stands behind `python cli.py` in code blocks and between backquotes, up to where the command ends, and what
    between backquotes begins with the name of a command and has options: `train --seed 1`."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines() if "```" in text else [text]:
        for found in re.findall(r"python cli\.py((?: [^`|;&#>\n]*)?)", line):
            yield found.strip()
    names = "|".join(cli.main.commands)
    for found in re.findall(rf"`((?:{names}) (?:[^`]* )?--[a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.S)):
        yield re.sub(r"(--[a-z0-9-]+)$", r"\1 VALUE", found)  # `mine --confidence`: a flag leaves it where it is


def unwrapped(text):
    """The text with code between backquotes that runs over a line's end on one line."""
    return re.sub(r"(?<!`)`([^`\n]*)\n([^`\n]*)`(?!`)", r"`\1 \2`", text)


def check(words):
    """Raises a usage error where the words are none of the program's."""
    command, context = cli.main, None
    while isinstance(command, click.Group):
        if not words:
            return
        command, words = command.get_command(context, words[0]), words[1:]
        if command is None:
            raise click.UsageError("no such command")
        context = click.Context(command)
    if words:
        command.make_parser(context).parse_args(words)


def is_whole(words):
    return not NO_COMMAND & set(words) and not any(word.endswith("...") for word in words)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_documents_parse(path):
    for text in commands_of(unwrapped(path.read_text(encoding="utf-8"))):
        words = shlex.split(text)
        if is_whole(words):
            try:
                check(words)
            except click.ClickException as error:
                pytest.fail(f"{path.name}: python cli.py {text}: {error.format_message()}")


def test_documents_name_commands():
    """Else the test above looks at nothing."""
    found = [text for path in DOCUMENTS for text in commands_of(unwrapped(path.read_text(encoding="utf-8")))]
    assert len(found) > 30 and any(text.startswith("reproduce violations --project none") for text in found)
    assert any(text.startswith("train --model distmult --data wn18rr") for text in found)  # over a line's end
    assert {"train --model ermlp --data wn18rr", "mine --confidence VALUE"} <= set(found)  # without python cli.py


@pytest.mark.parametrize("text", ["tran --seed 1", "train --sed 1", "bounds turn a b", "train --epochs"])
def test_a_command_that_does_not_parse_is_found(text):
    with pytest.raises(click.ClickException):
        check(shlex.split(text))


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: path.stem)
def test_searches_are_grids_that_tune_takes(path, capsys):
    fixed, axes = read_grid(path, [])
    trials = plan_trials(path, fixed, axes)
    assert len(trials) > 1 and {trial["data"] for _, trial in trials.values()} == {fixed["data"]}
    lines = capsys.readouterr().err.splitlines()  # plain runs of a grid differ in nothing
    assert all("lambda=0" in line and line.endswith("it is done once") for line in lines)
    assert f"searches/{path.name}" in (ROOT / "docs" / "REPRODUCTION.md").read_text(encoding="utf-8")


def test_there_are_searches_and_one_runs(tmp_path):
    assert len(SEARCHES) > 10
    smaller = (
        "--data",
        write_ring(tmp_path / "ring"),
        "--epochs",
        1,
        "--dim",
        4,
        "--batches",
        1,
        "--validate-every",
        1,
    )
    file = ROOT / "docs" / "searches" / "readings-margin.toml"
    lines = ok("tune", "--file", file, *smaller, "--threads", 1, "--out", tmp_path / "out").stdout.splitlines()
    assert lines[0].split()[0] == "margin" and {line.split()[0] for line in lines[2:5]} == {"0.2", "0.5", "1.0"}
    found = [json.loads(path.read_text())["settings"] for path in tmp_path.glob("out/*/config.json")]
    assert {(settings["loss"], settings["margin"]) for settings in found} == {("hinge", x) for x in (0.2, 0.5, 1.0)}


def reproductions():
    """The words of each `reproduce` of the documents, once, without the number of seeds and runs at a time."""
    found = {}
    for path in DOCUMENTS:
        for text in commands_of(unwrapped(path.read_text(encoding="utf-8"))):
            words = re.sub(r" --(seeds|jobs|plot) \S+", "", text).split()
            if words[:1] == ["reproduce"] and words[1:] and is_whole(words):
                found[" ".join(words)] = words[1:]
    return list(found.values())


def test_all_tables_are_in_the_documents():
    assert {words[0] for words in reproductions()} == PAPER_TABLES.keys()


@pytest.fixture(scope="module")
def small_sets(tmp_path_factory):
    """A folder of small data sets with the names that the tables know, with the people of Tables 1 and 8."""
    sets = tmp_path_factory.mktemp("documents") / "sets"
    people = json.loads((ROOT / "data" / "reproduction.json").read_text())["people"]
    for name in ("families", "wn18rr", "wn18", "fb13"):
        with open(write_ring(sets / name) / "train.txt", "a") as train:
            print(*people.get(name, ("e0", "r0")), "e1", sep="\t", file=train)
    return sets


@pytest.mark.thorough
@pytest.mark.parametrize("words", reproductions(), ids=" ".join)
def test_each_table_of_the_documents_is_made(words, small_sets, monkeypatch):
    monkeypatch.setenv("CARDKGE_DATA", str(small_sets))
    options = ["--quick", "--seeds", 1, "--threads", 1, "--out", small_sets / "out"]
    if words[0] in ("datasets", "constraints"):
        options = []
    printed = ok("reproduce", *words, *options, "--markdown").stdout
    assert len([line for line in printed.splitlines() if line.startswith("|")]) > 3


def anchors(path):
    """What a link may have behind # in a page: its headings, as GitHub names them."""
    for line in re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{path.name}: {link}"
