"""Data sets known by name: the folders where they are found, and their download."""

import hashlib
import http.client
import json
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path, PurePosixPath

import cardkge
from cardkge import CardkgeError
from cardkge_tools import SPLITS

_INSTALLED = Path(__file__).resolve().parent.parent / "data"
PROJECT_DATA = _INSTALLED if _INSTALLED.is_dir() else Path(cardkge.__file__).resolve().parent / "data"
DOWNLOAD_TIMEOUT = 30.0  # seconds without an answer
DOWNLOAD_LIMIT = 1 << 28  # bytes of a download, and of what an archive unpacks to
_FETCH_ERRORS = (
    *(OSError, http.client.HTTPException),  # the network and the disk
    *(tarfile.TarError, EOFError, zlib.error, ValueError),  # a damaged archive
)


def read_table():
    """data/datasets.json, name -> entry: files (name -> MD5), download (urls; SHA-256), sizes."""
    path = PROJECT_DATA / "datasets.json"
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CardkgeError(f"{path}: the table of data sets cannot be read: {error}") from error


def _entry(name):
    """The entry of a name in the table, or a CardkgeError."""
    table = read_table()
    if name not in table:
        raise CardkgeError(f"no data set named {name!r} in the table: it has {', '.join(table)}")
    return table[name]


def _user_cache():
    """The folder for downloads in the user's cache."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "cardkge"


def _data_folders():
    """The folders where a name is looked for, in this order."""
    own = [Path(part) for part in os.environ.get("CARDKGE_DATA", "").split(os.pathsep) if part]
    return [*own, PROJECT_DATA, _user_cache()]


def where_to_put(name):
    """The text that says what to do where a data set is missing."""
    folders = " or ".join(str(folder / name) for folder in _data_folders())
    how = f"put its train.txt, valid.txt and test.txt into {folders} (folders are looked for in $CARDKGE_DATA first)"
    return f"{how}, or use the embedded data set families"


def dataset_table():
    """The data sets known by name, a dict each: name, folder (or None where it is missing), entities, relations, train,
    valid, test (numbers, or None where the table does not give them), source (a line of text)."""
    keys = ("entities", "relations", *SPLITS, "source")
    return [
        {"name": name, "folder": locate_dataset(name), **{key: entry.get(key) for key in keys}}
        for name, entry in read_table().items()
    ]


def locate_dataset(name):
    """The folder of a data set of the table, or None; never downloads. NAME is looked for in each folder of
    $CARDKGE_DATA (os.pathsep between), the project's data/ and the user's cache. CardkgeError for an unknown name."""
    _entry(name)
    return next((folder / name for folder in _data_folders() if os.path.isdir(folder / name)), None)


def fetch_dataset(name, progress=None):
    """Downloads a data set of the table into the user's cache and returns its folder there.

    progress(done, total), if given, gets bytes, total None if the server does not say. The archive must have the
    table's SHA-256, where it has one, and each file its MD5: the folder appears complete, or not at all. CardkgeError
    for an unknown name, no network, or a download with another checksum."""
    entry = _entry(name)
    folder = _user_cache() / name
    if os.path.isdir(folder):
        return folder
    if not entry.get("download"):
        if found := locate_dataset(name):
            return found
        raise CardkgeError(f"{name} has no public direct download; {where_to_put(name)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
            ready = Path(work) / name
            ready.mkdir()
            for item in entry["download"]:
                file = item["url"].rpartition("/")[2]
                if file in entry["files"]:
                    _download(item["url"], ready / file, progress)
                    continue
                archive = Path(work) / file
                _download(item["url"], archive, progress)
                if "sha256" in item:
                    _check(archive, "sha256", item["sha256"])
                _unpack(archive, ready, entry["files"])
            for file, md5 in entry["files"].items():
                _check(ready / file, "md5", md5)
            try:
                os.rename(ready, folder)
            except OSError:
                if not folder.is_dir():  # else another process has fetched it meanwhile
                    raise
    except (*_FETCH_ERRORS, CardkgeError) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        reason = " ".join(str(reason).split())  # some have several lines
        source, where = entry["download"][0]["url"], where_to_put(name)
        raise CardkgeError(f"cannot fetch {name} from {source}: {reason}; {where}") from error
    return folder


def _require_https(url):
    """CardkgeError unless the url is HTTPS or of this machine (a mirror, a test): HTTP can be changed on its way."""
    parts = urllib.parse.urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not local:
        raise CardkgeError(f"refused {url}: not an https address")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections within HTTPS."""

    def redirect_request(self, request, response, code, message, headers, url):
        """Refuses a url that is not HTTPS; otherwise as urllib does."""
        _require_https(url)
        return super().redirect_request(request, response, code, message, headers, url)


def _download(url, path, progress):
    """Streams a url to a new file; CardkgeError if it is too long or ends too early."""
    _require_https(url)
    request = urllib.request.Request(url, headers={"User-Agent": "cardkge"})
    opener = urllib.request.build_opener(_Redirects)
    with opener.open(request, timeout=DOWNLOAD_TIMEOUT) as response, open(path, "xb") as file:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        done = 0
        while block := response.read(1 << 16):
            done += len(block)
            if done > DOWNLOAD_LIMIT:
                raise CardkgeError(f"longer than {DOWNLOAD_LIMIT} bytes")
            file.write(block)
            if progress:
                progress(done, total)
        if total is not None and done != total:  # http.client lets this pass
            raise CardkgeError(f"it ended after {done} of {total} bytes; try again")


def _unpack(archive, folder, files):
    """Writes the members that have the name of one of files (base name -> MD5) into the folder.

    Only the last part of a member's path is used. A link, a device or a path that leaves the folder makes the whole
    archive suspect. Of several members with one base name the one with the right MD5 stays."""
    total = 0
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            path = PurePosixPath(member.name.replace("\\", "/"))
            safe = (member.isreg() or member.isdir()) and not path.is_absolute()
            if not safe or ".." in path.parts:
                fault = "is a link, a device or has a path that leaves the archive's folder"
                raise CardkgeError(f"refused the archive: its member {member.name!r} {fault}")
            total += member.size
            if total > DOWNLOAD_LIMIT:
                raise CardkgeError(f"the archive unpacks to more than {DOWNLOAD_LIMIT} bytes")
            target = folder / path.name
            if not member.isreg() or path.name not in files:
                continue
            if not target.exists() or _digest(target, "md5") != files[path.name]:
                with members.extractfile(member) as source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file)


def _digest(path, algorithm):
    """A file's checksum, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(path, algorithm, expected):
    """CardkgeError unless a file has the expected checksum."""
    found = _digest(path, algorithm) if path.exists() else "no such file"
    if found != expected:
        raise CardkgeError(f"wrong {algorithm} of {path.name}: expected {expected}, found {found}")
