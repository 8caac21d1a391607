"""Files: read by blocks, written whole or not at all; folders, made and locked."""

import codecs
import contextlib
import csv
import errno
import functools
import gzip
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path

from cardkge import CardkgeError
from cardkge_tools import RUN_FILES


def is_packed(path):
    """Whether a file's name ends in .gz."""
    return os.fspath(path).lower().endswith(".gz")


def without_gz(path):
    """The text of a path, without the `.gz` at its end."""
    return os.fspath(path)[:-3] if is_packed(path) else os.fspath(path)


def replace_file(path, write, packed=None):
    """Writes a file completely or not at all; packed by gzip where its name ends in .gz (packed=False: as it is).

    `write(file)` gets a binary file with a temporary name beside `path`, renamed to `path` once all is on the disk. If
    that fails (the disk is full, say) CardkgeError is raised, the temporary file removed, and an older `path` kept. A
    symbolic link is followed. A device, a pipe and /dev/stdout are written to directly. The umask gives the mode."""
    if is_packed(path) if packed is None else packed:
        write = functools.partial(_write_packed, write)
    try:
        own = {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(os.fspath(path))
        if own is not None or (os.path.exists(path) and not os.path.isfile(path)):
            if own is not None:  # the stream itself: a file that is opened again would be overwritten
                own.flush()
            with open(path if own is None else os.dup(own.fileno()), "wb") as file:
                write(file)
            return
        path = os.path.realpath(path)
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except BrokenPipeError:
        raise  # the reader has gone: the program ends quietly
    except OSError as error:
        reason = error.strerror or error
        older = "; the older file is unchanged" if os.path.isfile(path) else ""
        raise CardkgeError(f"cannot write {path}: {reason}{older}") from error


def _write_packed(write, file):
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream:  # no name, no time: the same bits
        write(stream)


STAGE = ".saving"  # begins the name of a folder inside the run that holds the new files until all are complete
COMPLETE = f"{STAGE}-complete-"  # then its name begins so, and the files are moved into place, one after the other
SETTLED = 10  # seconds after the last move when no process can still be moving files


def replace_files(folder, contents, check):
    """Writes the files of a run, name -> `write(file)` as `replace_file` takes it, all of them or none.

    The folder is made if need be. All files are completed in a stage, a folder inside it, where `check(stage)` may
    refuse them; then they are moved into place, in the order of RUN_FILES, and the other RUN_FILES are removed. Where a
    process dies between two moves, the next `remove_stages` makes the others. A symbolic link is followed."""
    stage = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_stages(folder)
        stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder))
        for name, write in contents.items():
            replace_file(stage / name, write)
        check(stage)
        complete = folder / stage.name.replace(STAGE, COMPLETE, 1)
        os.replace(stage, complete)
        stage = None  # complete, so it stays whatever happens
        for name in RUN_FILES:
            if name not in contents:  # left by an older state, or by a run that this one replaces
                (folder / name).unlink(missing_ok=True)
        _move_into_place(complete, folder)
        for left in folder.glob(f"{COMPLETE}*"):  # this stage, and older ones, which must not overwrite it
            shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        remedy = "make room, or choose another folder with --out"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "make the folder writable, or work on a copy of it"
        raise CardkgeError(f"{folder}: the run cannot be saved here ({error.strerror or error}); {remedy}") from error
    except CardkgeError as error:  # it names a file of the stage
        raise CardkgeError(str(error).replace(str(stage), str(folder)) if stage else str(error)) from error
    finally:
        if stage:
            shutil.rmtree(stage, ignore_errors=True)


def _move_into_place(stage, folder):
    """Moves the files of a complete stage into place; where a symbolic link stands, its target is replaced."""
    for name in RUN_FILES:
        if os.path.islink(folder / name):
            if (stage / name).exists():
                content = (stage / name).read_bytes()
                replace_file(folder / name, lambda file, content=content: file.write(content))
                (stage / name).unlink()
        else:
            with contextlib.suppress(FileNotFoundError):  # not part of this save, or moved already
                os.replace(stage / name, folder / name)


def remove_stages(folder, age=3600):
    """Finishes a save that died between two moves, and removes the stage of one that died before. A save that is still
    at work is younger than `age` seconds, and between its moves younger than SETTLED."""
    for left in Path(folder).glob(f"{STAGE}*"):
        complete = left.name.startswith(COMPLETE)
        try:
            if time.time() - left.stat().st_mtime >= min(age, SETTLED if complete else age):
                if complete:
                    _move_into_place(left, Path(folder))
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            if complete:
                what = f"{folder}: a save into it was cut short ({error.strerror})"
                raise CardkgeError(f"{what}; move the files of {left} into it") from error


def refuse_utf_16(path, start):
    """CardkgeError where a file begins as UTF-16: with a byte order mark or, of Latin letters, every other byte 0."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        found = "UTF-16"
    else:
        size = max(len(start) // 2, 1)
        zeros = [start[first::2].count(0) / size for first in (0, 1)]
        if max(zeros) < 0.4 or min(zeros) > 0.1:
            return
        found = "UTF-16BE" if zeros[0] > zeros[1] else "UTF-16LE"
    first = f"byte 0x{start[0]:02x}, as {found} begins"
    raise CardkgeError(f"{path}:1: not UTF-8 ({first}); convert it, say `iconv -f {found} -t UTF-8 {path} > NEW`")


BLOCK = 1 << 18  # bytes read at a time: memory holds the strings of one block, never of the file


def read_blocks(path):
    """Yields (line number, the text of that line and of some after it) through a whole UTF-8 file. Every line ends in
    LF: a byte order mark and the CR of a CRLF are dropped, a last LF is added."""
    number = 1
    try:
        with (gzip.open if is_packed(path) else open)(path, "rb") as file:
            while block := file.read(BLOCK) + file.readline():
                if number == 1:
                    refuse_utf_16(path, block[: 1 << 10])
                    block = block.removeprefix(codecs.BOM_UTF8)
                if not block.endswith(b"\n"):
                    block += b"\n"
                block = block.replace(b"\r\n", b"\n")
                yield number, block.decode("utf-8")
                number += block.count(b"\n")
    except UnicodeDecodeError as error:
        number += block.count(b"\n", 0, error.start)
        found = f"byte 0x{block[error.start]:02x}, {error.reason}"
        how = f"convert it, say `iconv -f LATIN1 -t UTF-8 {path} > NEW`, if it is LATIN1"
        raise CardkgeError(f"{path}:{number}: not UTF-8 ({found}); {how}") from None
    except (OSError, EOFError, zlib.error) as error:  # EOFError, zlib: a damaged .gz
        raise CardkgeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_fields(path):
    """Yield (line number, fields) of each line of a UTF-8 file with tabs between fields, blank lines passed over."""
    for number, text in read_blocks(path):
        for at, line in enumerate(text[:-1].split("\n"), number):
            if line.strip(" \t"):
                yield at, line.split("\t")


def line_error(path, at, fields, fault):
    """The CardkgeError for a faulty line; a carriage return in it is the fault behind all others."""
    if any("\r" in field for field in fields):
        fault = "a carriage return inside the line; save the file with lines that end in LF"
    return CardkgeError(f"{path}:{at}: {fault}")


def missing_extra(option, error, extra):
    """The error for an option whose optional package is not installed; `error` is the ImportError."""
    return CardkgeError(f"{option} needs {error.name}, which is not installed: pip install -e '.[{extra}]'")


REMEDY = "restore it from a copy, or remove its folder and train again"


def read_json(path, remedy=REMEDY):
    """The JSON object in a file, or a CardkgeError that names the remedy."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise CardkgeError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise CardkgeError(f"{path}: not JSON ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise CardkgeError(f"{path}: not a JSON object; {remedy}")
    return value


FORMAT_VERSION = 1  # of config.json and model.npz


def check_version(path, version, remedy=REMEDY, oldest=1, newest=FORMAT_VERSION):
    """CardkgeError for a format version that this program cannot read."""
    if type(version) is not int or version < 1:
        raise CardkgeError(f"{path}: format_version is {version!r}, not a number; {remedy}")
    if version < oldest:
        raise CardkgeError(f"{path}: format version {version}, of an earlier program; {remedy}")
    if version > newest:
        later = f"is later than {newest}, the last that this program reads"
        raise CardkgeError(f"{path}: format version {version} {later}; use the newer program that wrote it")


def json_bytes(value, **options):
    """A value as the bytes of a JSON file. Floats keep their bits: they are written by repr. Half letters, which a path
    that is not UTF-8 has, become escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=float, **options) + "\n"
    return text.encode(errors="backslashreplace")


def is_stdout(path):
    """Whether the path is stdout, where no table may follow the JSON."""
    return path is not None and (path == "-" or os.fspath(path) == "/dev/stdout")


def write_report(path, value):
    """Writes a report as JSON where a path is given, "-" for stdout; returns whether a table may follow on stdout."""
    if path:
        content = json_bytes(value, allow_nan=False)
        sys.stdout.write(content.decode()) if path == "-" else replace_file(path, lambda file: file.write(content))
    return not is_stdout(path)


def csv_text(columns, rows):
    """The text of a CSV file with these columns; a dict of `rows` may lack some."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_toml(path):
    """The tables of a TOML file, or a CardkgeError."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError as error:
            needs = "Python 3.11, or `pip install tomli`"
            raise CardkgeError(f"{path}: TOML needs {needs}; --grid needs neither") from error
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise CardkgeError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


IN_USE = "another process trains into it"


def in_use(folder):
    """The error for a folder that another process trains into."""
    return CardkgeError(f"{folder}: {IN_USE}; wait for it, or choose another folder with --out")


@contextlib.contextmanager
def sole_use(folder):
    """Locks the folder for this process, and says whether it could: not while another process of this machine holds the
    lock. The system frees it when the process ends, however it ends. A folder that cannot be locked, because it is
    missing or the system has no such locks, counts as locked by this process."""
    with contextlib.ExitStack() as held:
        try:
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except (ImportError, OSError) as error:
            alone = not isinstance(error, BlockingIOError)
        yield alone


@contextlib.contextmanager
def made_folder(out):
    """(the folder, made if need be; a list of the folders that were made, the innermost first). At the end those still
    listed are removed if they are empty."""
    made = []
    try:
        yield make_folder(out, made), made
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def make_folder(out, made):
    """Makes the folder, for None the next free number under runs/, and the missing folders above it; lists in `made`
    what it made, the innermost first. CardkgeError if no file can be written there."""
    if out and os.path.isfile(out):
        raise CardkgeError(f"{out} is a file; choose another folder with --out")
    try:
        goal = out or Path("runs")
        for folder in reversed([goal, *goal.parents]):
            with contextlib.suppress(FileExistsError):  # another process was quicker
                if not folder.is_dir():
                    folder.mkdir()
                    made.insert(0, folder)
        out = out or numbered_folder(goal, made)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        what = f"{error.filename or out}: cannot be written ({error.strerror})"
        raise CardkgeError(f"{what}; choose another folder with --out") from error
    return out


def folder_of_graph(out):
    """`make_folder` for the files of a graph; CardkgeError where a run stands, whose files have such names."""
    if os.path.exists(Path(out) / "model.npz"):
        raise CardkgeError(f"{out} holds a run, whose bounds and classes would be lost; choose another --out")
    return make_folder(out, [])


def numbered_folder(parent, made):
    """Makes the folder of the next free number under `parent`."""
    taken = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
    for number in itertools.count(max(taken, default=0) + 1):
        folder = parent / f"{number:04d}"
        with contextlib.suppress(FileExistsError):  # another process was quicker
            folder.mkdir()
            made.insert(0, folder)
            return folder
