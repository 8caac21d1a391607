"""Names of a graph by the million: each kept once, as bytes, with an id; blocks of lines become ids, ids become lines.

A Python dict of names costs 150 bytes a name beside the name itself, and half a microsecond a look-up. Here the names
lie one after the other in one array (*arena*), and a hash table of their ids finds them.
"""

import itertools

import numpy as np

from kernels import compiled, inlined, prefetch_row

FULL = 0.5  # share of the hash table's slots in use before it grows
OK, IRREGULAR = 0, 1
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)  # any odd number that mixes well


@compiled
def split_lines(codes, separator, ending, starts, ends):
    """Find three fields in each line: `a SEPARATOR b SEPARATOR c ENDING`.

    codes: (L,) uint8, whole lines, each with LF at its end. separator: one byte. ending: (e,) uint8, what stands
    between the third field and the LF. starts, ends: (3 n,) int64, filled with where the fields are.
    Returns (lines found, OK), or (lines before it, IRREGULAR) at a line of another form: an empty field, a separator
    too many, or a third field that begins with a quotation mark.
    """
    at, found, size = 0, 0, len(codes)
    while at < size:
        for column in range(3):
            start = at
            while codes[at] != separator and codes[at] != 10:
                at += 1
            if at == start or (column < 2 and codes[at] == 10):
                return found // 3, IRREGULAR
            starts[found + column], ends[found + column] = start, at
            if column < 2:
                at += 1
        if codes[starts[found + 2]] == 34 and len(ending):
            return found // 3, IRREGULAR
        for byte in ending:
            if codes[at] != byte:
                return found // 3, IRREGULAR
            at += 1
        if codes[at] != 10:
            return found // 3, IRREGULAR
        at += 1
        found += 3
    return found // 3, OK


@inlined
def eight_bytes(codes, at):
    """codes[at:at + 8] as one number, which compiles to one load."""
    word = np.uint64(0)
    for i in range(8):
        word |= np.uint64(codes[at + np.uint64(i)]) << np.uint64(8 * i)
    return word


@inlined
def hash_bytes(codes, start, end):
    """A hash of codes[start:end], eight bytes at a time. Positions are uint64: no test whether they are negative."""
    value, at = _START ^ (end - start), start
    while at + np.uint64(8) <= end:
        value = (value ^ eight_bytes(codes, at)) * _PRIME
        value ^= value >> np.uint64(32)
        at += np.uint64(8)
    while at < end:
        value = (value ^ np.uint64(codes[at])) * _PRIME
        at += np.uint64(1)
    return (value ^ (value >> np.uint64(29))) * _PRIME


@inlined
def same_bytes(codes, start, end, arena, begin):
    """Whether codes[start:end] lies at arena[begin:] too."""
    while start + np.uint64(8) <= end:
        if eight_bytes(codes, start) != eight_bytes(arena, begin):
            return False
        start, begin = start + np.uint64(8), begin + np.uint64(8)
    while start < end:
        if codes[start] != arena[begin]:
            return False
        start, begin = start + np.uint64(1), begin + np.uint64(1)
    return True


@compiled
def intern(codes, starts, ends, slots, hashes, offsets, arena, count, ids):
    """The ids of names; a new name gets the next id.

    codes: (L,) uint8; the names are codes[starts[i]:ends[i]]. slots: (2^b,) int32, an id or -1; hashes: of the names
    by id, uint64; name i lies at arena[offsets[i]:offsets[i + 1]]. All are large enough for every name to be new, and
    changed in place. count: of names so far. ids: (n,) int32, filled. Returns the new count.
    """
    mask, n = np.uint64(len(slots) - 1), len(starts)
    values = np.empty(n, np.uint64)
    for i in range(n):
        values[i] = hash_bytes(codes, np.uint64(starts[i]), np.uint64(ends[i]))
    # what a name needs is fetched while others are looked up: its slot, then what lies by the id in it, then the bytes
    rows = slots.reshape(-1, 1), hashes.reshape(-1, 1), offsets.reshape(-1, 1), arena.reshape(-1, 1)
    for i in range(n):
        if i + 24 < n:
            prefetch_row(rows[0], (values[i + 24] >> np.uint64(32)) & mask)
        if i + 16 < n:
            known = slots[(values[i + 16] >> np.uint64(32)) & mask]
            if known >= 0:
                prefetch_row(rows[1], known)
                prefetch_row(rows[2], known)
        if i + 8 < n:
            known = slots[(values[i + 8] >> np.uint64(32)) & mask]
            if known >= 0:
                prefetch_row(rows[3], offsets[known])
        start, end, value = np.uint64(starts[i]), np.uint64(ends[i]), values[i]
        slot = (value >> np.uint64(32)) & mask
        while True:
            known = slots[slot]
            if known < 0:
                begin = np.uint64(offsets[count])
                for at in range(end - start):
                    arena[begin + at] = codes[start + at]
                offsets[count + 1] = begin + end - start
                hashes[count], slots[slot], ids[i] = value, count, count
                count += 1
                break
            begin = np.uint64(offsets[known])
            length = np.uint64(offsets[known + 1]) - begin
            if hashes[known] == value and length == end - start and same_bytes(codes, start, end, arena, begin):
                ids[i] = known
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@compiled
def fill_slots(slots, hashes, count):
    """Enter names 0 to count - 1 in an empty hash table, by their hashes."""
    mask = np.uint64(len(slots) - 1)
    for known in range(count):
        slot = (hashes[known] >> np.uint64(32)) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = known


@compiled
def lines_size(triples, entity_offsets, relation_offsets):
    """The number of bytes that `join_lines` writes."""
    size = 3 * len(triples)
    for row in range(len(triples)):
        h, r, t = triples[row, 0], triples[row, 1], triples[row, 2]
        size += entity_offsets[h + 1] - entity_offsets[h] + entity_offsets[t + 1] - entity_offsets[t]
        size += relation_offsets[r + 1] - relation_offsets[r]
    return size


@compiled
def join_lines(triples, entities, entity_offsets, relations, relation_offsets, text):
    """Write `head TAB relation TAB tail LF` for each of triples (n, 3) into text (L,) uint8, which is long enough.
    Names lie as in `intern`. Returns the number of bytes."""
    at = np.uint64(0)
    names = entities.reshape(-1, 1)
    for row in range(len(triples)):
        if row + 12 < len(triples):
            for column in range(0, 3, 2):
                prefetch_row(names, entity_offsets[triples[row + 12, column]])
        for column in range(3):
            name = triples[row, column]
            source, limits = (relations, relation_offsets) if column == 1 else (entities, entity_offsets)
            start, end = np.uint64(limits[name]), np.uint64(limits[name + 1])
            while start + np.uint64(8) <= end:
                word = eight_bytes(source, start)
                for i in range(8):
                    text[at + np.uint64(i)] = word >> np.uint64(8 * i)
                start, at = start + np.uint64(8), at + np.uint64(8)
            while start < end:
                text[at] = source[start]
                start, at = start + np.uint64(1), at + np.uint64(1)
            text[at] = 10 if column == 2 else 9
            at += np.uint64(1)
    return at


@compiled
def lines_of_names(arena, offsets, text):
    """Write each name, arena[offsets[i]:offsets[i + 1]], and LF into text (L,) uint8, which is just long enough."""
    for i in range(len(offsets) - 1):
        for at in range(offsets[i], offsets[i + 1]):
            text[at + i] = arena[at]
        text[offsets[i + 1] + i] = 10


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
