"""The commands that take a user's own graph in: `import`, `split`, `bounds convert`, with what they say."""

import contextlib

import click

from cardkge_tools.graph import rdf
from cardkge_tools.graph.importing import ImportOptions, import_graph
from cardkge_tools.graph.splitting import described, split_folder
from cardkge_tools.shell.files import is_stdout, write_json
from cardkge_tools.shell.terminal import counter, table, warn


def run_import(files, out, bounds, prefix, force, json_file, options):
    """Import, with progress on stderr, and say what came of it."""
    options = ImportOptions(prefixes=rdf.given_prefixes(prefix), **options)
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
    parts = split_folder(folder, out, group=group, **options)
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
