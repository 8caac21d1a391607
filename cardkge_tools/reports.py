"""TODO"""

import click


from cardkge_tools.terminal import interval, short, table


METRICS = ("hits@1", "hits@3", "hits@5", "hits@10", "mrr")  # shown in percent


def show_metrics(rows, headers):
    """Print metrics, in percent: a row for each pair of a list, its first columns, and a dict."""
    lines = [[*start, *(f"{100 * m[name]:.2f}" for name in METRICS), f"{m['mean_rank']:,.1f}"] for start, m in rows]
    names = [f"{name.upper() if name == 'mrr' else name} %" for name in METRICS]
    table(lines, [*headers, *names, "mean rank"], "l" * len(headers))


def show_violations(found):
    click.echo("\n".join(f"({i}) {name}" for i, name in enumerate(found, 1)) + "\n")
    headers = ["relation", "bound", "heads"]
    for i in range(1, len(found) + 1):
        headers += [f"({i}) outside %", "mean", "quartiles"]
    headers += ["change outside %", "mean"] if len(found) > 1 else []
    rows = []
    for relation in next(iter(found.values())):
        parts = [part[relation] for part in found.values()]
        first, last = parts[0], parts[-1]
        row = [relation, interval(first["lower"], first["upper"]), f"{first['subjects']:,}"]
        for v in parts:
            row += [f"{100 * v['outside']:.1f}", short(v["mean"]), " ".join(map(short, v["quartiles"]))]
        if len(parts) > 1:
            row += [f"{100 * (last['outside'] - first['outside']):+.1f}", f"{last['mean'] - first['mean']:+,.1f}"]
        rows.append(row)
    if rows:
        table(rows, headers)
    else:
        click.echo("no relation is bounded")
