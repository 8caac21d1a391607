"""Names of a graph by the million: each kept once, as bytes, with an id; blocks of lines become ids, ids become lines.

A Python dict of names costs 150 bytes a name beside the name itself, and half a microsecond a look-up. Here the names
lie one after the other in one array (*arena*), and a hash table of their ids finds them.
"""

import itertools

import numpy as np

from kernels import fill_slots, intern, join_lines, lines_of_names, lines_size

FULL = 0.5  # share of the hash table's slots in use before it grows


class Names:
    """Distinct names (bytes) in order of first appearance; the position of a name is its id."""

    def __init__(self):
        self.count = 0
        self.slots = np.full(1 << 12, -1, np.int32)
        self.hashes = np.empty(1 << 11, np.uint64)
        self.offsets = np.zeros(1 + (1 << 11), np.int64)
        self.arena = np.empty(1 << 16, np.uint8)

    def __len__(self):
        return self.count

    def ids(self, codes, starts, ends):
        """(n,) int32 of the names codes[starts[i]:ends[i]]."""
        self._make_room(len(starts), int((ends - starts).sum()))
        found = np.empty(len(starts), np.int32)
        tables = self.slots, self.hashes, self.offsets, self.arena
        self.count = intern(codes, starts, ends, *tables, self.count, found)
        return found

    def _make_room(self, names, size):
        count, used = self.count + names, int(self.offsets[self.count]) + size
        if count > len(self.hashes):
            self.hashes = _longer(self.hashes, count)
            self.offsets = _longer(self.offsets, count + 1)
        if used > len(self.arena):
            self.arena = _longer(self.arena, used)
        if count > FULL * len(self.slots):
            self.slots = np.full(1 << int(np.ceil(np.log2(1.5 * count / FULL))), -1, np.int32)
            fill_slots(self.slots, self.hashes, self.count)

    def __getitem__(self, i):
        """The name, bytes, of an id."""
        return self.arena[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def texts(self):
        """The names, decoded, by id; for names without a line's end in them."""
        if not self.count:
            return []
        text = np.empty(int(self.offsets[self.count]) + self.count, np.uint8)
        lines_of_names(self.arena, self.offsets[: self.count + 1], text)
        return text[:-1].tobytes().decode().split("\n")

    def __iter__(self):
        """The names, bytes, by id."""
        limits = self.offsets[: self.count + 1].tolist()
        whole = memoryview(self.arena)
        return (whole[start:end].tobytes() for start, end in itertools.pairwise(limits))


def _longer(array, size):
    """The array with room for `size` elements and half as many again, what it holds kept."""
    new = np.empty(size + size // 2, array.dtype)
    new[: len(array)] = array
    return new


def packed(names):
    """(arena, offsets) of a list of bytes."""
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, names), np.int64, len(names)), out=offsets[1:])
    return np.frombuffer(b"".join(names), np.uint8), offsets


def triple_lines(triples, entities, relations):
    """The lines of triples (n, 3), bytes; entities and relations as `packed` gives them."""
    text = np.empty(lines_size(triples, entities[1], relations[1]), np.uint8)
    join_lines(triples, *entities, *relations, text)
    return text.data
