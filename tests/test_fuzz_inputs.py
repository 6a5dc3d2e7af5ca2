"""Every reader of a user's files, with generated input: what it accepts, a second reader of another method agrees with;
all else is one sentence.
"""

import csv
import gzip
import json
import re
import struct
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
import tiny_runs
from dimacs import json_graph
from fuzzing import Edges, col, damage, damaged, edge_list, explore, one_sentence, random_pairs

from gnn_training.data import packed, sources
from gnn_training.data.families import draw as draw_graph
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.graph import Graph

pytestmark = pytest.mark.fuzz
ASCII = " \t\n\r\x0b\x0c"
csv.field_size_limit(1 << 20)


def graphml(graph: tuple[int, Edges]) -> bytes:
    nodes = "".join(f'<node id="{v}"/>' for v in range(graph[0]))
    edges = "".join(f'<edge source="{u}" target="{v}"/>' for u, v in graph[1])
    return f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph>{nodes}{edges}</graph></graphml>'.encode()


def prism(graph: tuple[int, Edges]) -> bytes:
    return json.dumps(json_graph(Graph.from_edges(*graph), range(graph[0]), older=graph[0] % 2 == 0)).encode()


def node_link(graph: tuple[int, Edges]) -> bytes:
    edges = [{"source": u, "target": v} for u, v in graph[1]]
    return json.dumps({"nodes": [{"id": v} for v in range(graph[0])], "links": edges}).encode()


def read_json(content: bytes) -> tuple[int, set]:
    document = json.loads(content)
    if "adjacency" in document:
        rows = document["adjacency"]["data"]
        flat = [cell for row in rows for cell in row] if isinstance(rows[0], list) else rows
        n = round(len(flat) ** 0.5)
        return n, {frozenset((i // n, i % n)) for i, cell in enumerate(flat) if cell}
    links = document["edges"] if "edges" in document else document["links"]
    pairs = [(str(link["source"]), str(link["target"])) for link in links]
    return numbered([str(node["id"]) for node in document["nodes"]], pairs)


def read_col(content: bytes) -> tuple[int, set]:
    num_nodes, edges = 0, set()
    for line in content.removeprefix(b"\xef\xbb\xbf").splitlines():
        match line.split():
            case [b"p", _, n, *_]:
                num_nodes = int(n)
            case [b"e", u, v, *_]:
                edges.add(frozenset((int(u) - 1, int(v) - 1)))
    return num_nodes, edges


def numbered(nodes: list, pairs: list) -> tuple[int, set]:
    nodes = list(dict.fromkeys(nodes))
    digits = [node.removeprefix("-") for node in nodes]
    if all(word.isascii() and word.isdigit() and len(word) <= 18 for word in digits):
        nodes = sorted(nodes, key=int)
    return len(nodes), {frozenset((nodes.index(u), nodes.index(v))) for u, v in pairs}


def without_brackets(line: str) -> str:
    """The inside of a line that is one pair of brackets."""
    inner = line.strip(" \t")
    inner = (inner[:-1] if inner[-1:] in (",", ";") else inner).strip(" \t")
    is_pair = inner[:1] + inner[1:][-1:] in ("()", "[]", "{}") and not set("()[]{}") & set(inner[1:-1])
    return inner[1:-1] if is_pair else line


def read_table(content: bytes, kind: str, num_nodes: int) -> tuple[int, set]:
    """The graph of a table, if it is of this kind and has so many nodes."""
    text = b"\n".join(content.removeprefix(b"\xef\xbb\xbf").splitlines()).decode()
    text = "\n".join(map(without_brackets, text.split("\n")))
    text = re.sub(r"[ \t]\{.*\}[ \t]*$", "", text, flags=re.MULTILINE)
    rows = [line for line in text.split("\n") if line.strip(ASCII)[:1] not in ("", "#", "%")]
    bare = [re.sub(r'"[^"]*"', "", line).strip(ASCII) for line in rows]
    found = [sign for sign in "\t;," if any(x.partition(sign)[2].lstrip(ASCII + sign)[:1] not in "#" for x in bare)]
    if found:
        table = [
            [cell.strip(ASCII) for cell in next(csv.reader([line], delimiter=found[0], skipinitialspace=True))]
            for line in rows
        ]
    else:
        words = [next(csv.reader([" ".join(re.split(f"[{ASCII}]+", x.strip(ASCII)))], delimiter=" ")) for x in rows]
        table = [[word.strip(ASCII) for word in takewhile(lambda word: word[:1] != "#", row)] for row in words]
    table = [row[: max((i + 1 for i, cell in enumerate(row) if cell), default=0)] for row in table]
    table = [row for row in table if row and row[0][:1] not in ("#", "%")]
    u, v, base = 0, 1, 0
    if kind == "adjacency matrix":
        cells = [[float(cell) for cell in row[-num_nodes:]] for row in table[-num_nodes:]]
        assert all(cells[i][j] == cells[j][i] for i in range(num_nodes) for j in range(num_nodes))
        return len(cells), {frozenset((i, j)) for i, row in enumerate(cells) for j, cell in enumerate(row) if cell}
    if kind == "adjacency lists":
        if all(row[0].endswith(":") or row[1:2] == [":"] for row in table):
            table = [[row[0].removesuffix(":").strip(ASCII), *row[1 + (row[1:2] == [":"]) :]] for row in table]
        pairs = [(row[0], cell) for row in table for cell in row[1:] or row[:1]]
        return numbered([end for row in table for end in row], pairs)
    if "header" in kind or "numbers" in kind:
        first, *table = table
        names = ["".join(filter(str.isalpha, cell.lower())) for cell in first]
        if {"source", "target"} <= set(names):
            u, v = names.index("source"), names.index("target")
    pairs = [(row[u], row[v]) for row in table]
    if "numbers" in kind:
        base = int(max(int(end) for pair in pairs for end in pair) == num_nodes)
        return int(first[0]), {frozenset((int(u) - base, int(v) - base)) for u, v in pairs}
    return numbered([end for pair in pairs for end in pair], pairs)


def read_graphml(content: bytes) -> tuple[int, set]:
    root = ElementTree.fromstring(content)
    space = root.tag.removesuffix("graphml")
    (graph,) = root.findall(f"{space}graph")
    nodes, pairs = [], []
    for child in graph:
        if child.tag == f"{space}node":
            nodes.append(child.attrib["id"])
        elif child.tag == f"{space}edge":
            pairs.append((child.attrib["source"], child.attrib["target"]))
            nodes += pairs[-1]
    return numbered(nodes, pairs)


def matrix(graph: tuple[int, Edges]) -> bytes:
    return b"\n".join(b" ".join(b"%d" % cell for cell in row) for row in Graph.from_edges(*graph).adjacency())


def adjacency_lists(graph: tuple[int, Edges]) -> bytes:
    rows = enumerate(Graph.from_edges(*graph).adjacency())
    return "\n".join(" ".join(map(str, [v, *row.nonzero()[0]])) for v, row in rows).encode()


READERS: dict[str, tuple[Callable, Callable]] = {
    "a.col": (col, read_col), "a.edges": (edge_list, read_table), "a.graphml": (graphml, read_graphml),
    "a.json": (prism, read_json), "b.json": (node_link, read_json), "b.txt": (matrix, read_table),
    "a.csv": (lambda graph: b"Source,Target\n" + edge_list(graph).replace(b" ", b","), read_table),
    "a.txt": (adjacency_lists, read_table),
}  # fmt: skip


def check_reader(name: str, content: bytes) -> str:
    """Whether a reader agrees with the second one, or refuses in one sentence with the name of the file."""
    try:
        instance = sources.parse(name, content)
    except UserError as error:
        assert str(error).startswith(f"{name}: ")
        return one_sentence(error)
    graph, second = instance.graph, READERS[name][1]
    if second is read_table and instance.kind == "DIMACS":
        second = read_col
    num_nodes, edges = second(content, instance.kind, graph.num_nodes) if second is read_table else second(content)
    expected = sorted(tuple(sorted(edge)) for edge in edges if len(edge) == 2)
    assert (graph.num_nodes, [tuple(edge) for edge in graph.edges.tolist()]) == (num_nodes, expected)
    return instance.kind.partition(",")[0].partition(" '")[0]


@pytest.mark.parametrize("name", READERS)
def test_a_graph_that_is_read_is_the_graph(name: str):
    explore(partial(check_reader, name), damaged(lambda rng: READERS[name][0](random_pairs(rng))))


def test_a_compressed_file_is_the_graph_or_one_sentence(tmp_path: Path):
    path = tmp_path / "a.col.gz"

    def check_gzip(content: bytes) -> str:
        path.write_bytes(content)
        try:
            graph = sources.read(path).graph
        except UserError as error:
            assert str(path) in str(error)
            return one_sentence(error)
        unpacked = sources.parse("a.col", gzip.decompress(content)).graph
        assert graph.num_nodes == unpacked.num_nodes and graph.edges.tolist() == unpacked.edges.tolist()
        return "accepted"

    explore(check_gzip, damaged(lambda rng: gzip.compress(col(random_pairs(rng)), 1, mtime=0)))


KINDS = [tarfile.REGTYPE] * 4 + [kind.encode() for kind in "SLKxgX123567\0VM"]
NAMES = ["a.col", "b/c.json", "../up.col", "/etc/x.edges", "a.col/b.col", ".hidden.col", "no.txt", "metadata.json",
         "n" * 300 + ".col", "b", "a\nb.col", "\x1b[31m.col", "..", "", "a.col.gz", "\udcff.col", "b/../a"]  # fmt: skip
PAX = [b"20 path=inside.col\n\0", b"14 size=10240\n", b"9 size=1\n", b"22 GNU.sparse.major=1\n", b"0 a=b\n",
       b"1000 path=a\n", b"12 path=a/b\n"]  # fmt: skip


def random_archive(rng: Random) -> bytes:
    """A tar archive of members of any kind, whose sizes may lie, perhaps compressed."""
    content = b""
    for number in range(rng.randint(1, 4)):
        member, inside = tarfile.TarInfo(f"{number}.col"), col(random_pairs(rng))
        member.size = len(inside)
        if rng.random() < 0.4:
            member.name, member.type = rng.choice(NAMES), rng.choice(KINDS)
            member.linkname = rng.choice(["", "/dev/zero", "../a.col"])
            inside = rng.choice([inside, rng.choice(PAX), b"a.col\0"])
            member.size = rng.choice([len(inside)] * 6 + [0, 1 << 33, 1 << 40, 511, -1])
        header = member.tobuf(rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), "utf-8", "surrogateescape")
        content += header + inside + bytes(-len(inside) % 512)
    content += bytes(rng.choice([1024] * 6 + [0, 512, 10240]))
    return rng.choice([content, gzip.compress(content, 0, mtime=0), gzip.compress(content, 1, mtime=0)])


def test_an_archive_leads_to_graph_files_in_its_folder_or_to_one_sentence(tmp_path: Path):
    outside, path = {tmp_path / "pool.tar.gz", tmp_path / "unpacked"}, tmp_path / "pool.tar.gz"

    def check_archive(content: bytes) -> str:
        path.write_bytes(content)
        folder = tmp_path / "unpacked"
        try:
            found = {each.read_bytes() for each in sources.unpack(path, folder)}
        except UserError as error:
            assert str(path) in str(error)
            return one_sentence(error)
        finally:
            assert set(tmp_path.iterdir()) <= outside
            files = [each for each in folder.rglob("*") if not each.is_dir()]
            assert all(each.is_file() and not each.is_symlink() for each in files)
            assert sum(each.stat().st_size for each in files) <= 1_000_000
            for each in sorted(folder.rglob("*"), reverse=True):
                each.rmdir() if each.is_dir() else each.unlink()
            folder.rmdir()
        with tarfile.open(path) as archive:  # which reads the same members with code of its own
            regular = [archive.extractfile(member) for member in archive if member.isreg()]
            assert found <= {member.read() for member in regular if member}
        return "accepted"

    explore(check_archive, damaged(random_archive))


def lying_header(content: bytes, rng: Random) -> bytes:
    """A safetensors file whose header is JSON with other values, or other bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    header = damage(content[8 : 8 + length], rng)
    claimed = rng.choice([len(header)] * 5 + [0, 1, len(header) + 1, 1 << 40, (1 << 64) - 1])
    return struct.pack("<Q", claimed) + header + content[8 + length :]


@pytest.mark.parametrize("name", [packed.GRAPHS_FILE, packed.MANIFEST_FILE])
def test_packed_graphs_can_be_used_or_are_named_as_damaged(name: str, tmp_path: Path):
    tiny_runs.pack(tmp_path, [draw_graph(0, "er_dense", index, 12) for index in range(3)])
    content = (tmp_path / name).read_bytes()

    def check_file(changed: bytes) -> str:
        (tmp_path / name).write_bytes(changed)
        try:
            opened = PackedGraphs.open(tmp_path)
            opened.verify()
        except UserError as error:
            assert str(tmp_path) in str(error)
            return one_sentence(error)
        assert changed == content or name == packed.MANIFEST_FILE
        for i in range(len(opened)):
            assert opened.graph(i).num_nodes == len(packed.ragged_row(opened.tensors, "coloring", i))
            assert isinstance(opened.families[opened.family[i]], str) and opened.name(i)
        return "accepted"

    damages = [damage, lying_header] if name == packed.GRAPHS_FILE else [damage]
    explore(check_file, lambda rng: rng.choice(damages)(content, rng))
