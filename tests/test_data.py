"""Triple files, vocabularies, data sets, downloads: the faults as much as the good days."""

import errno
import gzip
import hashlib
import http.server
import io
import os
import random
import stat
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cardkge
import cardkge_tools.graph.graphs
import cardkge_tools.shell.download
import cardkge_tools.shell.files
from cardkge import CardkgeError

MODULE_FOLDER = str(Path(cardkge.__file__).parent)
GRAPH = "a\tlikes\tb\nb\tlikes\tc\nc\tknows\ta\n"

# Any legal name: no tab, no LF, no CR.
names = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1)
triple_lists = st.lists(st.tuples(names, names, names), min_size=1, max_size=20)


def make_folder(folder, train=GRAPH, valid="a\tlikes\tc\n", test="b\tknows\tc\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in (("train", train), ("valid", valid), ("test", test)):
        data = text if isinstance(text, bytes) else text.encode("utf-8")
        (folder / f"{split}.txt").write_bytes(data)
    return folder


def as_text(triples):
    return "".join("\t".join(triple) + "\n" for triple in triples)


def error_of(call, *arguments, **options):
    """The message of the CardkgeError that the call must raise; always a single line."""
    with pytest.raises(CardkgeError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


# --- Reading triples ------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
@pytest.mark.parametrize(
    "data",
    [
        GRAPH.encode(),
        b"\xef\xbb\xbf" + GRAPH.encode(),
        GRAPH.replace("\n", "\r\n").encode(),
        GRAPH.rstrip("\n").encode(),
        b"\n\n" + GRAPH.replace("\n", "\n  \n\n").encode(),
        b"\xef\xbb\xbf\r\n" + GRAPH.replace("\n", "\r\n\r\n").encode() + b"\r\n",
    ],
    ids=["plain", "bom", "crlf", "no last newline", "blank lines", "bom, crlf and blank lines"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_all_spellings_of_a_file_read_alike(tmp_path, monkeypatch, data, zipped, block):
    monkeypatch.setattr(cardkge_tools.shell.files, "BLOCK", block)
    path = tmp_path / ("x.txt.gz" if zipped else "x.txt")
    path.write_bytes(gzip.compress(data) if zipped else data)
    expected = (["a", "b", "c"], ["likes", "likes", "knows"], ["b", "c", "a"])
    assert cardkge.read_triples(path) == expected


@pytest.mark.parametrize("columns", ["hrt", "htr", "rht", "rth", "thr", "trh"])
def test_columns_say_which_column_is_what(tmp_path, columns):
    path = tmp_path / "x.txt"
    path.write_text("\t".join({"h": "Ada", "r": "knows", "t": "Bob"}[c] for c in columns))
    assert cardkge.read_triples(path, columns) == (["Ada"], ["knows"], ["Bob"])


@pytest.mark.parametrize("columns", ["hr", "hrr", "hrtx", "", "HRT", None])
def test_other_columns_are_refused(tmp_path, columns):
    path = tmp_path / "x.txt"
    path.write_text(GRAPH)
    assert "hrt" in error_of(cardkge.read_triples, path, columns)


def test_names_are_verbatim(tmp_path):
    odd = [" two  spaces ", "\u2028\u2029\x85", "\x0b\x0c\x1c", "\u00a0", "\ufeff", "e\u0301", "\0", "🦉"]
    path = tmp_path / "x.txt"
    path.write_bytes(as_text([("h", name, name) for name in odd]).encode())
    assert cardkge.read_triples(path) == (["h"] * len(odd), odd, odd)


def test_only_the_start_of_a_file_can_be_a_byte_order_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(cardkge_tools.shell.files, "BLOCK", 1)  # each line a block of its own
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeff\ufeffa\tr\tb\n\ufeffc\tr\td\n".encode())
    assert cardkge.read_triples(path)[0] == ["\ufeffa", "\ufeffc"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(triples=triple_lists, ends=st.sampled_from(["\n", "\r\n", "\n\n"]), bom=st.booleans(), block=st.integers(1, 50))
def test_any_legal_names_come_back(tmp_path, triples, ends, bom, block):
    text = "".join("\t".join(triple) + ends for triple in triples)
    path = tmp_path / "x.txt"
    # A first name that begins with U+FEFF needs a byte order mark before it.
    path.write_bytes(text.encode("utf-8-sig" if bom or text.startswith("\ufeff") else "utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cardkge_tools.shell.files, "BLOCK", block)
        found = cardkge.read_triples(path)
    assert found == tuple(map(list, zip(*triples, strict=True)))


@pytest.mark.parametrize("block", [1, 1 << 22])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"a\tlikes", "found 2: 'a\\tlikes'"),
        (b"a likes b", "found 1: 'a likes b'"),
        (b"a\tlikes\tb\tc", "found 4:"),
        (b"a\tlikes\tb\tc\td\te", "found 6:"),  # two lines' worth in one
        (b"\tlikes\tb", "an empty name: '\\tlikes\\tb'"),
        (b"a\t\tb", "an empty name"),
        (b"a\tlikes\t", "an empty name"),
        (b"a\tlikes\t\r", "an empty name"),
        (b"\t\tt", "an empty name"),
        (b"h\rx\tr\tt", "a carriage return inside the line"),
        (b"h\r\tr\tt", "a carriage return inside the line"),
        (b"x" * 10_000, "..."),
        (b"a\tl\xefkes\tb", "not UTF-8 (byte 0xef"),
        (b"a\tlikes\t\xff", "not UTF-8 (byte 0xff"),
        (b"\xed\xa0\x80\tlikes\tb", "not UTF-8"),  # a surrogate
        ("a\tlikes\tb".encode("utf-16"), "not UTF-8"),
    ],
)
@pytest.mark.parametrize("before", [b"", b"\n \r\n", b"x\ty\tz\r\n" * 50])
def test_a_faulty_line_is_named(tmp_path, monkeypatch, line, found, before, block):
    monkeypatch.setattr(cardkge_tools.shell.files, "BLOCK", block)
    path = tmp_path / "x.txt"
    path.write_bytes(before + line + b"\n" + GRAPH.encode())
    message = error_of(cardkge.read_triples, path)
    assert message.startswith(f"{path}:{before.count(10) + 1}: ")
    assert found in message
    assert len(message) < len(str(path)) + 250


def test_two_faults_that_cancel_out_are_found(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("a\tr\nb\tr\tc\td\n")
    assert error_of(cardkge.read_triples, path).startswith(f"{path}:1: expected 3")


@pytest.mark.parametrize("damage", [lambda z: z[:-12], lambda z: z[:30] + b"\0\1" + z[32:], lambda z: b"no gzip"])
def test_a_damaged_gz_is_an_error(tmp_path, damage):
    text = as_text((f"e{i}", f"r{i * i % 7}", f"e{i * 31 % 97}") for i in range(1000))
    path = tmp_path / "x.txt.gz"
    path.write_bytes(damage(gzip.compress(text.encode())))
    assert str(path) in error_of(cardkge.read_triples, path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path):
    assert "No such file" in error_of(cardkge.read_triples, tmp_path / "none.txt")
    assert "directory" in error_of(cardkge.read_triples, tmp_path)


# --- Data sets ------------------------------------------------------------------------------------


def test_ids_in_order_of_first_appearance(tmp_path):
    folder = make_folder(tmp_path / "g", "b\ts\ta\na\tr\tb\n", "d\tq\tc\n", "e\tr\tb\n")
    data = cardkge.load_dataset(folder)
    assert data.entities == ["b", "a", "d", "c", "e"]
    assert data.relations == ["s", "r", "q"]
    assert data.train.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert data.valid.tolist() == [[2, 2, 3]]
    assert data.test.tolist() == [[4, 1, 0]]
    assert data.known.tolist() == [[0, 0, 1], [1, 1, 0], [2, 2, 3], [4, 1, 0]]
    assert (data.n_entities, data.n_relations) == (5, 3)
    assert (data.name, data.folder) == (str(folder), folder)
    for split in (data.train, data.valid, data.test, data.known):
        assert split.dtype == np.int32 and split.flags.c_contiguous


def test_other_triples_under_a_known_name_are_said(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "wn18rr")
    monkeypatch.setenv("CARDKGE_DATA", str(tmp_path))
    (warning,) = cardkge.load_dataset("wn18rr").warnings
    found = len(cardkge.load_dataset(folder).train)
    assert warning == f"{folder} is another wn18rr than the table's: {found} train triples, there 86835"
    assert cardkge.load_dataset(folder).warnings == () and cardkge.load_dataset("families").warnings == ()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(splits=st.tuples(triple_lists, triple_lists, triple_lists), block=st.integers(1, 100))
def test_a_data_set_holds_what_the_files_say(tmp_path, splits, block):
    """Against the plain definition, line by line."""
    texts = [as_text(split).encode() for split in splits]
    texts = [b"\xef\xbb\xbf" + t if t.startswith(b"\xef\xbb\xbf") else t for t in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cardkge_tools.shell.files, "BLOCK", block)
        data = cardkge.load_dataset(make_folder(tmp_path / "g", *texts))
    lines = [triple for split in splits for triple in split]
    assert data.entities == list(dict.fromkeys(name for h, _, t in lines for name in (h, t)))
    assert data.relations == list(dict.fromkeys(r for _, r, _ in lines))
    for ids, split in zip((data.train, data.valid, data.test), splits, strict=True):
        read = [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in ids]
        assert read == list(dict.fromkeys(split))


def test_the_hash_seed_changes_nothing(tmp_path):
    rng = random.Random(0)
    triples = [(f"e{rng.randrange(50)}", f"r{rng.randrange(9)}", f"e{rng.randrange(50)}") for _ in range(300)]
    folder = make_folder(tmp_path / "g", as_text(triples), as_text(triples[:3]), as_text(triples[3:5]))
    code = (
        "import sys, cardkge; d = cardkge.load_dataset(sys.argv[1]);"
        "print(d.entities, d.relations, d.known.tolist(), d.warnings)"
    )
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": MODULE_FOLDER}
        outputs.add(subprocess.check_output([sys.executable, "-c", code, folder], env=environment))
    assert len(outputs) == 1 and b"'e" in outputs.pop()


def test_bytes_are_decoded_whatever_the_locale(tmp_path):
    folder = make_folder(tmp_path / "g", "Zoë\tkennt\tÅsa\n")
    code = "import sys, cardkge; print(ascii(cardkge.load_dataset(sys.argv[1]).entities[:2]))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = MODULE_FOLDER
    output = subprocess.check_output([sys.executable, "-c", code, folder], env=environment)
    assert output.decode().strip() == ascii(["Zoë", "Åsa"])


def test_what_is_dropped_and_what_is_unseen_is_counted(tmp_path):
    folder = make_folder(
        tmp_path / "g",
        GRAPH + "a\tlikes\tb\nb\tlikes\ta\na\tlikes\tb\n",
        "a\tlikes\tb\nx\tlikes\ty\nx\tknows\ta\nx\tknows\ta\n",
        "z\thates\tz\nb\tlikes\tc\nc\tknows\ta\n",
    )
    data = cardkge.load_dataset(folder)
    assert data.train.tolist() == [[0, 0, 1], [1, 0, 2], [2, 1, 0], [1, 0, 0]]
    assert data.valid.tolist() == [[0, 0, 1], [3, 0, 4], [3, 1, 0]]
    assert set(data.warnings) == {
        "duplicates dropped: 2 of 6 train triples, 1 of 4 valid triples",
        "kept though in train too: 1 of 3 valid triples, 2 of 3 test triples",
        "entities unseen in train: 2 in 2 of 3 valid triples, 1 in 1 of 3 test triples",
        "relations unseen in train: 1 in 1 of 3 test triples",
    }


def test_of_many_duplicates_the_first_stays(tmp_path):
    rng = random.Random(0)
    lines = [("a", "r", f"e{int(900 * rng.random() ** 2)}") for _ in range(5000)]
    data = cardkge.load_dataset(make_folder(tmp_path / "g", as_text(lines)))
    read = [data.entities[t] for t in data.train[:, 2]]
    assert read == list(dict.fromkeys(t for _, _, t in lines))


def test_a_clean_data_set_has_no_warnings(tmp_path):
    assert cardkge.load_dataset(make_folder(tmp_path / "g")).warnings == ()


def test_swapped_columns_are_suspected(tmp_path):
    train = "".join(f"a\tr{i}\tb\n" for i in range(3))
    folder = make_folder(tmp_path / "g", train, "a\tr0\tb\n", "a\tr1\tb\n")
    (warning,) = (w for w in cardkge.load_dataset(folder).warnings if "swapped" in w)
    assert "more relations (3) than entities (2)" in warning and "--columns htr" in warning
    assert not any("swapped" in w for w in cardkge.load_dataset(folder, "htr").warnings)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_split_is_an_error(tmp_path, split, content):
    folder = make_folder(tmp_path / "g", **{split: content})
    message = error_of(cardkge.load_dataset, folder)
    assert str(folder / f"{split}.txt") in message and "no triples" in message


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_missing_or_ambiguous_split_is_an_error(tmp_path, split):
    folder = make_folder(tmp_path / "g")
    (folder / f"{split}.tsv").write_text(GRAPH)
    message = error_of(cardkge.load_dataset, folder)
    assert f"{split}.txt and {split}.tsv" in message and str(folder) in message
    (folder / f"{split}.txt").unlink()
    assert cardkge.load_dataset(folder).n_entities == 3  # .tsv alone is fine
    (folder / f"{split}.tsv").unlink()
    message = error_of(cardkge.load_dataset, folder)
    assert f"no {split}.txt or" in message and str(folder) in message


def test_gz_splits(tmp_path):
    folder = make_folder(tmp_path / "g")
    plain = cardkge.load_dataset(folder)
    for path in list(folder.iterdir()):
        (folder / f"{path.stem}.tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    zipped = cardkge.load_dataset(str(folder))
    assert zipped.entities == plain.entities and (zipped.known == plain.known).all()


@pytest.mark.parametrize("name", ["none", "x" * 5000, "a\0b"])
def test_a_name_that_is_no_data_set(tmp_path, name):
    message = error_of(cardkge.load_dataset, str(tmp_path / name))
    assert name[:1] in message and "wn18rr" in message and "families" in message


def test_ids_out_of_range_and_a_graph_too_large_for_keys():
    assert "expected 0 to below" in error_of(cardkge.mine_bounds, [[0, 1, 0]], 5, 1)
    assert "2**63" in error_of(cardkge.mine_bounds, [[0, 0, 0]], 1 << 31, 3)


# --- Names, folders, the table --------------------------------------------------------------------


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table with one data set, `toy`, and empty folders to look in. Returns the table's entry."""
    files = {f"{split}.txt": GRAPH.encode() for split in ("train", "valid", "test")}
    entry = {
        "source": "a test",
        "entities": 3,
        "files": {name: hashlib.md5(data).hexdigest() for name, data in files.items()},
        "download": [],
    }
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(cardkge_tools.shell.download, "PROJECT_DATA", tmp_path / "project")
    for room in (cardkge_tools.shell.download, cardkge_tools.graph.graphs):
        monkeypatch.setattr(room, "read_table", lambda: {"families": {"files": {}}, "toy": entry})
    monkeypatch.setattr(cardkge_tools.shell.download, "_user_cache", lambda: tmp_path / "cache" / "cardkge")
    monkeypatch.delenv("CARDKGE_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return entry


def test_where_a_name_is_looked_for(tmp_path, monkeypatch, table):
    assert cardkge.locate_dataset("toy") is None
    first, second = tmp_path / "one", tmp_path / "two words"
    monkeypatch.setenv("CARDKGE_DATA", os.pathsep.join([str(first), "", str(second)]))
    assert cardkge.locate_dataset("toy") is None
    order = [tmp_path / "cache" / "cardkge", tmp_path / "project", second, first]
    for folder in order:  # each comes before those made earlier
        make_folder(folder / "toy")
        assert cardkge.locate_dataset("toy") == folder / "toy"
    assert cardkge.load_dataset("toy").folder == first / "toy"
    (row,) = (row for row in cardkge.dataset_table() if row["name"] == "toy")
    assert row["folder"] == first / "toy"
    assert (row["entities"], row["train"], row["source"]) == (3, None, "a test")


def test_a_name_wins_over_a_folder(tmp_path, monkeypatch, table):
    make_folder(tmp_path / "project" / "toy")
    make_folder(tmp_path / "here" / "toy", "q\tr\ts\n")
    monkeypatch.chdir(tmp_path / "here")
    assert cardkge.load_dataset("toy").n_entities == 3
    assert cardkge.load_dataset("./toy").entities[0] == "q"


@pytest.mark.parametrize("call", [cardkge.locate_dataset, cardkge.fetch_dataset])
def test_a_name_that_the_table_lacks(call, table):
    assert "families, toy" in error_of(call, "../toy")


def test_no_download_unless_wanted_or_possible(tmp_path, table):
    for message in (error_of(cardkge.load_dataset, "toy", download=False), error_of(cardkge.load_dataset, "toy")):
        assert str(tmp_path / "project" / "toy") in message
        assert "$CARDKGE_DATA" in message and "families" in message


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="where other systems keep caches")
def test_the_user_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cardkge_tools.shell.download._user_cache() == Path("/somewhere/cardkge")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cardkge_tools.shell.download._user_cache() == Path("/home/ada/.cache/cardkge")


def test_the_table_in_the_project():
    rows = {row["name"]: row for row in cardkge.dataset_table()}
    assert list(rows) == ["families", "wn18rr", "wn18", "fb13", "yago3-10", "fb15k-237", "umls"]
    for name, entry in cardkge_tools.shell.download.read_table().items():
        assert rows[name]["source"]
        if name != "families":
            assert set(entry["files"]) == {"train.txt", "valid.txt", "test.txt"}
            assert all(len(md5) == 32 for md5 in entry["files"].values())
        for item in entry["download"]:
            assert item["url"].startswith("https://")
    (archive,) = cardkge_tools.shell.download.read_table()["wn18rr"]["download"]
    expected = "1eb9152f804c140d163462c0d49f65e5a0b30ab5fbb375c5e3353c11a6249060"
    assert archive["sha256"] == expected


def test_an_unreadable_table_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(cardkge_tools.shell.download, "PROJECT_DATA", tmp_path)
    assert "datasets.json" in error_of(cardkge.dataset_table)
    (tmp_path / "datasets.json").write_text("{")
    assert "datasets.json" in error_of(cardkge.dataset_table)


@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        ("families", None),
        ("wn18rr", "198 in 210 of 3034 valid triples, 209 in 210 of 3134 test triples"),
        ("wn18", None),
        ("fb13", None),
    ],
)
def test_the_data_sets_of_the_table(name, unseen):
    """Sizes and checksums as pinned; WN18RR's unseen entities as AmpliGraph's manual has them."""
    entry = cardkge_tools.shell.download.read_table()[name]
    folder = cardkge.locate_dataset(name)
    if folder is None:
        pytest.skip(f"{name} is not on this machine; set CARDKGE_DATA to a folder that holds it")
    for file, md5 in entry["files"].items():
        assert hashlib.md5((folder / file).read_bytes()).hexdigest() == md5
    data = cardkge.load_dataset(name)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [
        entry[split] for split in ("train", "valid", "test")
    ]
    assert (data.n_entities, data.n_relations) == (entry["entities"], entry["relations"])
    assert data.warnings == ((f"entities unseen in train: {unseen}",) if unseen else ())


# --- Downloads, from a real server on this machine ------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path)
        if answer is None:
            self.send_error(404)
        elif callable(answer):
            answer(self)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(table):
    """A server; server.answers maps a path to bytes or to a function of the request handler."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.answers, server.asked, server.release = {}, [], threading.Event()
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


def tar(*members):
    """A .tar.gz of (name, bytes) pairs and of ready TarInfo objects."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


GOOD = [(f"Toy/{split}.txt", GRAPH.encode()) for split in ("train", "valid", "test")]


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def serve(server, entry, archive, pin=True):
    server.answers["/toy.tar.gz"] = archive
    entry["download"] = [{"url": f"{server.address}/toy.tar.gz"}]
    if pin and isinstance(archive, bytes):
        entry["download"][0]["sha256"] = hashlib.sha256(archive).hexdigest()


def cache_of(tmp_path):
    folder = tmp_path / "cache" / "cardkge"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def fetch_fails(tmp_path):
    """The message of a failed fetch, which says what to do and leaves nothing behind."""
    message = error_of(cardkge.fetch_dataset, "toy")
    assert "cannot fetch toy from" in message
    assert str(tmp_path / "project" / "toy") in message and "families" in message
    assert cache_of(tmp_path) == []
    return message


@pytest.mark.parametrize("pin", [True, False])
def test_fetch(tmp_path, server, table, pin):
    other = [("Toy/README", b"x"), ("./Toy/._train.txt", b"x"), special("Toy", tarfile.DIRTYPE)]
    archive = tar(*other, *GOOD)
    serve(server, table, archive, pin)
    seen = []
    folder = cardkge.fetch_dataset("toy", progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "cache" / "cardkge" / "toy" == cardkge.locate_dataset("toy")
    assert cache_of(tmp_path) == ["toy"]
    assert sorted(path.name for path in folder.iterdir()) == ["test.txt", "train.txt", "valid.txt"]
    assert (folder / "train.txt").read_text() == GRAPH
    assert seen[-1] == (len(archive), len(archive))
    assert cardkge.load_dataset("toy").n_entities == 3
    assert cardkge.fetch_dataset("toy") == folder and len(server.asked) == 1  # not again


def test_load_fetches_what_is_absent(tmp_path, server, table):
    serve(server, table, tar(*GOOD))
    assert cardkge.load_dataset("toy").folder == tmp_path / "cache" / "cardkge" / "toy"


def test_fetch_of_plain_files(tmp_path, server, table):
    for split in ("train", "valid", "test"):
        server.answers[f"/raw/{split}.txt"] = GRAPH.encode()
    table["download"] = [{"url": f"{server.address}/raw/{s}.txt"} for s in ("train", "valid", "test")]
    assert cardkge.load_dataset("toy").n_entities == 3
    assert cache_of(tmp_path) == ["toy"]


def test_of_two_editions_in_an_archive_the_pinned_one_is_taken(tmp_path, server, table):
    old = [(f"original/{split}.txt", b"other\tedition\tof it\n") for split in ("train", "test")]
    for archive in (tar(*old, *GOOD), tar(*GOOD, *old)):
        serve(server, table, archive)
        folder = cardkge.fetch_dataset("toy")
        assert (folder / "train.txt").read_text() == (folder / "test.txt").read_text() == GRAPH
        folder.rename(tmp_path / f"kept{len(server.asked)}")


def test_a_wrong_checksum_keeps_nothing(tmp_path, server, table):
    serve(server, table, tar(*GOOD))
    table["download"][0]["sha256"] = "0" * 64
    message = fetch_fails(tmp_path)
    assert "wrong sha256 of toy.tar.gz: expected 000" in message
    serve(server, table, tar(*GOOD[:2], ("Toy/test.txt", b"a\tb\tevil\n")), pin=False)
    assert "wrong md5 of test.txt" in fetch_fails(tmp_path)
    serve(server, table, tar(*GOOD[:2]))
    assert "test.txt" in fetch_fails(tmp_path)


@pytest.mark.parametrize(
    "member",
    [
        ("../evil.txt", b"x"),
        ("Toy/../../train.txt", GRAPH.encode()),
        ("..\\evil.txt", b"x"),
        ("/tmp/cardkge-evil.txt", b"x"),
        special("Toy/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("train.txt", tarfile.SYMTYPE, "../../../evil"),
        special("train.txt", tarfile.LNKTYPE, "Toy/valid.txt"),
        special("Toy/device", tarfile.CHRTYPE),
        special("train.txt", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name if isinstance(member, tarfile.TarInfo) else member[0],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path, server, table, member):
    serve(server, table, tar(*GOOD, member))
    name = member.name if isinstance(member, tarfile.TarInfo) else member[0]
    assert f"member {name!r}" in fetch_fails(tmp_path)
    assert not list(tmp_path.rglob("*evil*")) and not Path("/tmp/cardkge-evil.txt").exists()


@pytest.mark.parametrize("damage", [lambda z: z[:-200], lambda z: b"<html>", lambda z: gzip.compress(b"x" * 2000)])
def test_a_damaged_archive_is_refused(tmp_path, server, table, damage):
    rng = random.Random(0)
    serve(server, table, damage(tar(("noise", rng.randbytes(9999)), *GOOD)), pin=False)
    fetch_fails(tmp_path)


def test_too_large_is_refused(tmp_path, server, table, monkeypatch):
    monkeypatch.setattr(cardkge_tools.shell.download, "DOWNLOAD_LIMIT", 20_000)
    serve(server, table, tar(*GOOD, ("zeros", bytes(30_000))))  # small until it is unpacked
    assert "unpacks to more than 20000" in fetch_fails(tmp_path)
    serve(server, table, random.Random(0).randbytes(20_001))
    assert "longer than 20000" in fetch_fails(tmp_path)


def test_a_body_that_ends_early(tmp_path, server, table):
    archive = tar(*GOOD)

    def truncated(request):
        request.send_response(200)
        request.send_header("Content-Length", str(len(archive) + 1000))
        request.end_headers()
        request.wfile.write(archive)

    serve(server, table, truncated)
    assert f"after {len(archive)} of {len(archive) + 1000} bytes" in fetch_fails(tmp_path)


def test_404_and_no_server(tmp_path, server, table):
    table["download"] = [{"url": f"{server.address}/gone.tar.gz"}]
    assert "404" in fetch_fails(tmp_path)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    table["download"] = [{"url": f"http://127.0.0.1:{port}/toy.tar.gz"}]
    assert "refused" in fetch_fails(tmp_path)


@pytest.mark.parametrize("headers", [False, True])
def test_a_server_that_stalls(tmp_path, server, table, monkeypatch, headers):
    def stall(request):
        if headers:
            request.send_response(200)
            request.send_header("Content-Length", "1000")
            request.end_headers()
            request.wfile.write(b"some")
        server.release.wait(30)

    monkeypatch.setattr(cardkge_tools.shell.download, "DOWNLOAD_TIMEOUT", 0.2)
    serve(server, table, stall)
    assert "timed out" in fetch_fails(tmp_path)


@pytest.mark.parametrize("url", ["http://example.org/toy.tar.gz", "ftp://127.0.0.1/toy.tar.gz", "file:///etc/passwd"])
def test_only_https_leaves_this_machine(tmp_path, server, table, url):
    """Neither in the table nor where a server redirects to."""
    table["download"] = [{"url": url}]
    assert f"refused {url}" in fetch_fails(tmp_path)

    def redirect(request):
        request.send_response(302)
        request.send_header("Location", url)
        request.end_headers()

    serve(server, table, redirect)
    assert url in fetch_fails(tmp_path)
    assert server.asked == ["/toy.tar.gz"]


def test_a_redirection_in_a_circle(tmp_path, server, table):
    def redirect(request):
        request.send_response(302)
        request.send_header("Location", "/toy.tar.gz")
        request.end_headers()

    serve(server, table, redirect)
    assert "infinite loop" in fetch_fails(tmp_path)


def test_a_redirection_is_followed(server, table):
    def redirect(request):
        request.send_response(302)
        request.send_header("Location", f"{server.address}/moved")
        request.end_headers()

    serve(server, table, redirect)
    server.answers["/moved"] = tar(*GOOD)
    assert cardkge.fetch_dataset("toy").is_dir()
    assert server.asked == ["/toy.tar.gz", "/moved"]


def test_an_interrupted_download_leaves_nothing(tmp_path, server, table):
    def interrupt(done, total):
        assert len(cache_of(tmp_path)) == 1  # under way: a hidden folder
        raise KeyboardInterrupt

    serve(server, table, tar(*GOOD))
    with pytest.raises(KeyboardInterrupt):
        cardkge.fetch_dataset("toy", progress=interrupt)
    assert cache_of(tmp_path) == []


def test_someone_else_fetched_it_meanwhile(tmp_path, server, table):
    serve(server, table, tar(*GOOD))
    other = tmp_path / "cache" / "cardkge" / "toy"
    folder = cardkge.fetch_dataset("toy", progress=lambda *_: make_folder(other, "theirs\tr\ts\n"))
    assert folder == other and (other / "train.txt").read_text() == "theirs\tr\ts\n"
    assert cache_of(tmp_path) == ["toy"]


def test_a_cache_that_cannot_be_written(tmp_path, server, table):
    serve(server, table, tar(*GOOD))
    (tmp_path / "cache").write_text("a file where the folder should be")
    message = error_of(cardkge.fetch_dataset, "toy")
    assert "cannot fetch toy" in message and "families" in message


# --- Writing a file -------------------------------------------------------------------------------


def test_replace_file(tmp_path):
    path = tmp_path / "x"
    cardkge.replace_file(path, lambda file: file.write(b"one"))
    cardkge.replace_file(str(path), lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["x"]


@pytest.mark.skipif(os.name == "nt", reason="no umask")
def test_the_mode_is_the_umasks(tmp_path):
    old = os.umask(0o027)
    try:
        cardkge.replace_file(tmp_path / "x", lambda file: file.write(b"one"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_midway(tmp_path, before, fault):
    path = tmp_path / "x"
    if before:
        path.write_bytes(before)

    def write(file):
        file.write(b"half")
        raise fault

    with pytest.raises(CardkgeError if isinstance(fault, OSError) else KeyboardInterrupt) as caught:
        cardkge.replace_file(path, write)
    if isinstance(fault, OSError):
        assert str(path) in str(caught.value) and "No space left" in str(caught.value)
    assert os.listdir(tmp_path) == (["x"] if before else [])
    assert not before or path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="no limit of file sizes")
def test_a_real_write_that_fails_midway(tmp_path):
    """A process whose files may not exceed 4096 bytes: the kernel refuses the rest, as if full."""
    import resource

    path = tmp_path / "x"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        message = error_of(cardkge.replace_file, path, lambda file: file.write(bytes(100_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "too large" in message
    assert os.listdir(tmp_path) == ["x"] and path.read_bytes() == b"old"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_device():
    message = error_of(cardkge.replace_file, "/dev/full", lambda file: file.write(b"x"))
    assert "/dev/full: No space left on device" in message
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)  # written to, not replaced


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    cardkge.replace_file(tmp_path / "link", lambda file: file.write(b"new"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_a_folder_that_is_not_there(tmp_path):
    message = error_of(cardkge.replace_file, tmp_path / "no" / "x", lambda file: file.write(b""))
    assert str(tmp_path / "no" / "x") in message
    assert "directory" in error_of(cardkge.replace_file, tmp_path, lambda file: file.write(b""))
