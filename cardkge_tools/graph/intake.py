"""The commands that take a user's own graph in: `import`, `split`, `bounds convert`, with what they say."""

import contextlib

import click

from cardkge import CardkgeError
from cardkge_tools.graph import bound_files, rdf
from cardkge_tools.graph.importing import ImportOptions, import_graph
from cardkge_tools.graph.splitting import described, split_folder
from cardkge_tools.shell.files import is_stdout, refuse_the_same, without_gz, write_json
from cardkge_tools.shell.terminal import counter, table, warn


def prefixes_of(given):
    """A dict of NAME=IRI texts; those that are well known may be said by their name alone."""
    found = {}
    for text in given:
        name, equals, iri = text.partition("=")
        if not equals and name in rdf.WELL_KNOWN:
            iri = rdf.WELL_KNOWN[name]
        elif not equals or not iri:
            raise click.UsageError(f"--prefix {text}: expected NAME=IRI.")
        if found.get(name, iri) != iri:
            raise click.UsageError(f"--prefix {name} for the second time.")
        found[name] = iri
    return found


def run_import(files, out, bounds, prefix, force, json_file, options):
    """Import, with progress on stderr, and say what came of it."""
    options = ImportOptions(prefixes=prefixes_of(prefix), **options)
    with contextlib.ExitStack() as open_counters:
        shown = {}

        def progress(done, total, path):
            if path not in shown:
                shown[path] = open_counters.enter_context(counter(f"{path}: bytes"))
            shown[path](done, total)

        result = import_graph(files, out, options, bounds, force, progress)
    for note in result.notes:
        warn(note)
    if json_file:
        write_json(json_file, vars(result) | {"folder": str(out)})
    if is_stdout(json_file):
        return
    click.echo(f"{out}: {result.triples:,} triples, {result.entities:,} entities, {result.relations:,} relations")
    if result.typed:
        click.echo(f"{result.typed:,} entities have one of {result.classes:,} classes")
    if bounds:
        click.echo(f"{result.bounds:,} bounds")
    for what, number in result.counts.items():
        click.echo(f"{number:,} {what}")


def run_split(folder, out, group, json_file, options):
    """Split a folder and say what came of it."""
    shares = options.pop("valid"), options.pop("test")
    parts = split_folder(folder, out, shares, group=group, **options)
    for message in parts.warnings:
        warn(message)
    for split, number in parts.wanted.items():
        if parts.sizes[split] < 0.9 * number:
            warn(f"{split}: {parts.sizes[split]:,} triples, {number:,} were wanted: train needs the others")
    related = [described(each, parts.relations) for each in parts.related]
    if json_file:
        report = {"folder": str(out), **parts.sizes, "related": related, "kept_together": parts.groups if group else 0}
        write_json(json_file, report)
    if is_stdout(json_file):
        return
    click.echo(f"{out}: " + ", ".join(f"{number:,} {split}" for split, number in parts.sizes.items()))
    if related:
        together = "kept together" if group else "parted by --no-group"
        click.echo(f"\nrelations that say the same, whose facts are {together}:\n")
        rows = [[e["kind"], e["relation"], e["other"], f"{e['pairs']:,}"] for e in related]
        table(rows, ["", "relation", "other", "pairs"], "lll")
    if parts.copied:
        click.echo(f"\ncopied: {', '.join(parts.copied)}")


def run_convert(source, target, prefix, standard):
    """Convert a file of bounds and say what came of it."""
    tabular = without_gz(target).endswith((".tsv", ".txt"))
    if rdf.format_of(source) is None and rdf.format_of(target) is None and not tabular:
        raise CardkgeError(f"{target}: bounds are written as TSV or Turtle; end the name in .tsv or .ttl")
    refuse_the_same(source, target)
    prefixes = rdf.Prefixes(prefixes_of(prefix)) if prefix else None
    bounds, notes = bound_files.convert(source, target, prefixes, standard)
    for note in notes:
        warn(note)
    click.echo(f"{target}: {len(bounds):,} bounds")
