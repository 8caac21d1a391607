"""The terminal, without NumPy: click types and options, tables of text, progress, signals."""

import contextlib
import itertools
import math
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import unicodedata
import warnings

import click

from cardkge_tools import RUN_FILES, SPLIT_FILES, TEXTS, TRIPLE_FILES

PLAIN_LINES = 15  # of progress, where the output is no terminal
LONGEST = 100  # characters of a name in a message
# Marks and overrides of direction, isolates, zero-width characters: they change how the text after them is shown.
_INVISIBLE = set("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")
_UNSEEN = ("Cc", "Zl", "Zp", "Cs")  # Unicode's categories of control characters, ends of lines, half letters


class Command(click.Command):
    """Refuses to write over what it reads, or twice to one file, and says which files it replaces."""

    def invoke(self, ctx):
        """Runs the command."""
        read, written = list(ctx.meta.get("read", ())), []  # the classes of --model, see `use_models`
        for parameter in self.params:
            values = ctx.params.get(parameter.name) or ()
            for value in values if isinstance(values, tuple) else (values,):
                if isinstance(parameter.type, OutputName):
                    written.append((parameter, value))
                elif type(parameter.type) is PathName or parameter.name == "bounds":
                    read += [value, *map(str.strip, str(value).split(","))]
                elif ".py:" in str(value):  # MODEL of `check`
                    read.append(str(value).rpartition(":")[0])
        if fault := lost_file(read, [path for _, path in written]):
            Program.fail(ctx, fault)
        there = [path for parameter, path in written if parameter.name != "json_file" and os.path.isfile(path)]
        result = super().invoke(ctx)
        tell_replaced(*there)
        return result


def lost_file(read, written):
    """What is wrong where one of the paths that are written is a file that is read, or is written twice; else None."""
    for i, path in enumerate(written):
        if os.path.isfile(path) and any(os.path.isfile(other) and os.path.samefile(path, other) for other in read):
            return f"{path} is the file that is read; choose another name for what is written"
        real = os.path.realpath(path)
        is_file = os.path.isfile(real) or not os.path.exists(real)  # or will be one
        if is_file and path not in ("-", "/dev/stdout") and real in map(os.path.realpath, written[:i]):
            return f"{path} is written twice; choose another name for one of the files"
    return None


class Folder(click.Group):
    """A group of commands inside the program."""

    command_class = Command


class Program(Folder):
    """Turns whatever is raised into one line and an exit code."""

    group_class = Folder

    def main(self, *args, **kwargs):
        """Runs the program; where even --help cannot be written, that too becomes a line and an exit code."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old buffer cannot be written
            click.echo(f"error: cannot write the output: {error.strerror or error}", err=True)
            sys.exit(1)

    def invoke(self, ctx):
        """Runs a command; what it raises becomes a line and an exit code."""
        # names are UTF-8 whatever the locale; a letter that it cannot show is shown by its code
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        threads = os.environ.get("NUMBA_NUM_THREADS")
        if threads is not None and not re.fullmatch(r"\s*[+]?0*[1-9][0-9]*\s*", threads):  # Numba's import would end it
            self.fail(ctx, f"NUMBA_NUM_THREADS={threads}: expected a number of at least 1, or none; unset it")
        try:
            with warnings.catch_warnings():  # NumPy warns of an overflow; the library reports its effect
                warnings.simplefilter("ignore", RuntimeWarning)
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            ctx.exit(128 + signal.SIGINT)
        except MemoryError:
            smaller = "smaller ones (--dim, --hidden, --negatives), or smaller data"
            self.fail(ctx, f"not enough memory for these sizes; try {smaller}")
        except BrokenPipeError:
            raise  # the reader has gone: click ends quietly
        except OSError as error:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what is left in the old buffer cannot be written
            gone = isinstance(error, FileNotFoundError)  # os.getcwd() raises it, and names no file
            where = error.filename or ("the working directory" if gone else "cannot write the output")
            self.fail(ctx, f"{where}: {error.strerror or error}")
        except (Exception, SystemExit) as error:
            library, own = (sys.modules.get(name) for name in ("cardkge", "cardkge_tools.engine.own"))
            if library is not None and isinstance(error, library.CardkgeError):
                self.fail(ctx, error)
            fault = own and own.fault_of(error)  # a user's own class raised it
            if not fault:
                raise
            self.fail(ctx, fault)

    @staticmethod
    def fail(ctx, error):
        """The one line of an error, and exit code 1."""
        click.echo("error: " + shortened(" ".join(str(error).splitlines())), err=True)
        ctx.exit(1)


def shortened(message):
    """A message without its middle, where it is very long."""
    message = str(message)
    return message if len(message) <= 1000 else f"{message[:600]} ... {message[-300:]}"


class Real(click.FloatRange):
    """A finite number in a range; click's own lets NaN and infinity pass."""

    def convert(self, value, param, ctx):
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def choice(*values):
    """One of these words."""
    return click.Choice(values)


class NotEmpty:
    """Refuses empty text: the path "" would be the working directory."""

    def convert(self, value, param, ctx):
        if value == "":
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


class Text(NotEmpty, type(click.STRING)):
    """Text that is not empty."""


class PathName(NotEmpty, click.Path):
    """A path that is not empty."""


def option(names, kind, default, text):
    """A click option; its default, if it has one, is shown beside its help."""
    kinds = {"is_flag": True} if kind is bool else {"type": Text() if kind is str else kind}
    return click.option(*names.split(), default=default, show_default=default is not None, help=text, **kinds)


def options(*several):
    """Several click options as one decorator, in the order of the help."""

    def decorate(command):
        for each in reversed(several):
            command = each(command)
        return command

    return decorate


def is_input(path):
    """Which of the two in its folder, "run" or "data set", has a file of this name; None where neither has."""
    folder, name = os.path.split(os.path.realpath(path))
    if name in RUN_FILES and all(os.path.isfile(os.path.join(folder, part)) for part in ("config.json", "model.npz")):
        return "run"
    graphs = *SPLIT_FILES["train"], *TRIPLE_FILES
    is_graph = name in TRIPLE_FILES or any(os.path.isfile(os.path.join(folder, other)) for other in graphs)
    return "data set" if is_graph and name in (*itertools.chain(*SPLIT_FILES.values()), *TRIPLE_FILES, *TEXTS) else None


class OutputName(PathName):
    """A path to write: refused if a run or a data set there has a file of this name, which would be lost or, as another
    train split, be in the way. own: names that the command writes for data sets."""

    def __init__(self, *own, dir_okay=False):
        super().__init__(dir_okay=dir_okay)
        self.own = own

    def convert(self, value, param, ctx):
        value = super().convert(value, param, ctx)
        kind = is_input(value)
        if kind and not (kind == "data set" and os.path.basename(value) in self.own):
            self.fail(f"{value} is the name of a file of a {kind}; choose another name.", param, ctx)
        return value


def was_given(context, name):
    """Whether the option stands on the command line."""
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def warn(*messages):
    """Prints warnings on stderr, a line each."""
    for message in messages:
        say(f"warning: {shortened(message)}", err=True)


@contextlib.contextmanager
def going_on(err=False):
    """Lets the work inside go on where its output cannot be written: the reader has gone (`| head`), or the disk is
    full; a warning tells the latter."""
    try:
        yield
    except OSError as error:
        setattr(sys, "stderr" if err else "stdout", open(os.devnull, "w"))  # noqa: SIM115
        if not err and not isinstance(error, BrokenPipeError):
            warn(f"cannot write the output ({error.strerror}); it goes on without")


def say(text="", **options):
    """click.echo for long work, which a failure to write does not end (see `going_on`)."""
    with going_on(options.get("err", False)):
        click.echo(text, **options)


def brief(text, limit=LONGEST):
    """A text of at most `limit` characters, its end cut off."""
    return text if limit is None or len(text) <= limit else text[: limit - 3] + "..."


def shown(name, quoted=False, limit=LONGEST):
    """A name for a table or a message: as it is, or, where it has spaces at its ends, control characters or characters
    that are invisible and change how others are shown, in quotes with escapes."""
    unseen = any(letter in _INVISIBLE or unicodedata.category(letter) in _UNSEEN for letter in name)
    name, spaced = brief(name, limit), name != name.strip()
    if not (unseen or spaced):
        return repr(name) if quoted else name
    escapes = {"\\": "\\\\", "'": "\\'"}
    for letter in set(name):
        if letter in _INVISIBLE or unicodedata.category(letter) in (*_UNSEEN, "Cf"):
            escapes[letter] = ascii(letter)[1:-1]
    return f"'{name.translate(str.maketrans(escapes))}'"


def width_of(text):
    """The columns that a terminal gives a text: two for a wide letter, none for a mark on the letter before it."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me", "Cf") for letter in text)


_FILL = "\ue000"  # stands for the letters of a cell while the table is set


def table(rows, headers, align="l", style="simple"):
    """Prints a table of text. align: l or r for each column, r for the columns after its end; style as in tabulate. A
    cell with invisible characters is shown in quotes, with escapes."""
    from tabulate import tabulate

    rows = [[shown(cell, limit=None) for cell in row] for row in rows]
    odd = [cell for row in [headers, *rows] for cell in row if not cell.isascii()]
    headers, *rows = ([cell if cell.isascii() else _FILL * width_of(cell) for cell in row] for row in [headers, *rows])
    sides = [{"l": "left", "r": "right"}[side] for side in align.ljust(len(headers), "r")]
    text = tabulate(rows, headers, style, disable_numparse=True, colalign=sides if rows else None)
    cells = iter(odd)
    click.echo(re.sub(f"{_FILL}+", lambda _: next(cells), text))


def counted(n, noun, nouns=None):
    """A number of things as text: 1 fact, 2,000 facts."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def tell_replaced(*paths):
    """A line on stderr for each of the files that are there, and are written anew."""
    for path in paths:
        if os.path.isfile(path) and os.fspath(path) != "/dev/stdout":
            say(f"{path}: the file that was there is replaced", err=True)


def interval(lower, upper):
    """The text of a bound: [0, 2], or [0, inf) without an upper bound."""
    return f"[{lower:.15g}, {upper:.15g}" + (")" if math.isinf(upper) else "]")


def short(value):
    """Three digits or more of a sum."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def listed(text):
    """The names in a text, with commas between them, each once; or the one name, where it is the path of a folder."""
    names = (name.strip() for name in text.split(","))
    return [text] if os.path.isdir(text) else list(dict.fromkeys(name for name in names if name))


@contextlib.contextmanager
def held_signals():
    """Collects SIGINT, SIGTERM and SIGHUP (unless nohup has it ignored), and lets the process live on."""
    caught = []
    signals = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {s: signal.signal(s, lambda number, frame: caught.append(number)) for s in signals}
    try:
        yield caught
    finally:
        for s in signals:
            signal.signal(s, before[s])


def this_command():
    """How the user has called this program: messages that propose a command begin with it."""
    name = sys.argv[0]
    return f"python {shlex.quote(name)}" if os.path.basename(name) == "cli.py" else "cardkge"


@contextlib.contextmanager
def counter(what):
    """A function (done, total) that shows progress on stderr: on a terminal one line, redrawn; elsewhere a line for
    each further tenth, once it takes some seconds. Threads may call it, in any order."""
    terminal, shown, tenth, most, lock = sys.stderr.isatty(), time.monotonic(), 0, -1, threading.Lock()

    def show(done, total):
        nonlocal shown, tenth, most
        with lock:
            if done <= most:
                return
            most = done
            if terminal and time.monotonic() - shown > 0.1:
                say(f"\r{what}: {done:,} of {total:,}\x1b[K", nl=False, err=True)
                shown = time.monotonic()
            elif not terminal and 10 * done // max(total, 1) > tenth:
                if time.monotonic() - shown > 5:
                    say(f"{what}: {done:,} of {total:,}", err=True)
                tenth = 10 * done // max(total, 1)

    yield show
    if terminal:
        say("\r\x1b[K", nl=False, err=True)


class Progress:
    """Shows how far training is: one line, redrawn, on a terminal; about PLAIN_LINES lines elsewhere."""

    def __init__(self, run, n_triples, examples=1.0):
        self.examples = examples  # in a step
        self.first, self.last, self.n_triples = run.epoch, run.settings.epochs, n_triples
        self.every = max(1, math.ceil((self.last - self.first) / PLAIN_LINES))
        self.terminal = sys.stderr.isatty()
        self.start = self.drawn = time.monotonic()
        self.text = ""

    def on_epoch(self, run, record):
        """After an epoch: its objective, and on a terminal the bar."""
        self.text = f"  objective {record['objective'] / self.examples:.4f}"
        if record["penalty"]:
            self.text += f" (penalty {record['penalty'] / self.examples:.4f})"
        if "valid_mrr" in record:
            self.text += f"  valid MRR {100 * record['valid_mrr']:.2f}"
        self.text += f"  {self.n_triples / max(record['seconds'], 1e-9):,.0f} triples/s"
        if self.terminal:
            self.draw(run.epoch)
        elif run.epoch in (self.first + 1, self.last) or run.epoch % self.every == 0:
            say(f"epoch {run.epoch}/{self.last}{self.text}{self.left(run.epoch)}", err=True)

    def on_step(self, run, step, steps):
        """After a step: the bar on a terminal, ten times a second at most."""
        if self.terminal and time.monotonic() - self.drawn > 0.1:
            self.draw(run.epoch + step / steps)

    def draw(self, done):
        """Draws the bar anew; `done` in epochs."""
        filled = int(20 * done / max(self.last, 1))
        bar = "#" * filled + "-" * (20 - filled)
        line = f"[{bar}] epoch {math.ceil(done)}/{self.last}{self.text}{self.left(done)}"
        width = shutil.get_terminal_size().columns - 1
        say(f"\r{line[:width]}\x1b[K", nl=False, err=True)
        self.drawn = time.monotonic()

    def left(self, done):
        """The text that says how long the rest will take."""
        if done <= self.first:
            return ""
        seconds = (time.monotonic() - self.start) / (done - self.first) * (self.last - done)
        return f"  {int(seconds) // 60}:{int(seconds) % 60:02d} left"

    def close(self):
        """Ends the line of the bar."""
        if self.terminal and self.drawn > self.start:
            say(err=True)
