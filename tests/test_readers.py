"""Every reader returns a graph or one sentence about bad input. test_fuzz_inputs compares it with a second reader."""

import gzip
import json
import lzma
import os
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from itertools import count, starmap
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from dimacs import json_graph
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import GRAPH

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.data import formats, location, sources, tables
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance
from gnn_training.settings import RunSettings

TAILED = Graph.from_edges(4, [(0, 1), (1, 2), (0, 2), (2, 3)])  # a triangle with a tail
COL = b"p edge 4 4\ne 1 2\ne 1 3\ne 2 3\ne 3 4\n"


def tailed_json(older: bool = False, **changes) -> dict:
    return json_graph(TAILED, [0, 1, 2, 0], older, **changes)


def json_of(older: bool, changes: dict) -> bytes:
    return json.dumps(tailed_json(older, **changes)).encode()


def parse_json(document: object) -> Instance:
    return sources.parse("graph.json", json.dumps(document).encode())


def same(graph: Graph, other: Graph) -> bool:
    return graph.num_nodes == other.num_nodes and np.array_equal(graph.edges, other.edges)


def complaint(name: str, content: bytes) -> str:
    with pytest.raises(UserError) as caught:
        sources.parse(name, content)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    return message.removeprefix(f"{name}: ")


@given(GRAPH, st.booleans())
def test_both_json_schemas_read_back_as_written(graph: Graph, older: bool):
    read = parse_json(json_graph(graph, range(graph.num_nodes), older))
    assert same(read.graph, graph) and read.coloring.tolist() == list(range(graph.num_nodes))
    assert (read.graph_type, read.family, read.warning) == (3, "leighton", "")


def test_labels_and_features_may_be_missing_null_or_wrong_and_a_graph_type_a_name():
    read = parse_json({"adjacency": tailed_json()["adjacency"], "coloring": None})
    assert (read.coloring, read.graph_type, read.family, read.warning) == (None, UNKNOWN_TYPE, "imported", "")
    ignored = {"node_features": {"data": [None] * 5}, "chromatic_number": "three", "difficulty_score": -1}
    assert same(parse_json(tailed_json(**ignored)).graph, TAILED)
    for name, number in (("RandomSparse", 0), ("random_dense", 1), ("Geometric", 4)):
        assert parse_json(tailed_json(graph_type=name)).graph_type == number


def test_a_coloring_counts_from_0_and_is_noted_and_not_used_if_it_is_not_proper():
    assert parse_json(tailed_json(coloring=[0, 1, 3, 1])).coloring.tolist() == [0, 1, 2, 1]
    read = parse_json(tailed_json(coloring=[0, 0, 1, 2]))
    assert read.coloring is None
    assert read.warning == "graph.json: its coloring is not proper (conflicts: 1) and is not used"


GRAPHML = b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph>%s</graph></graphml>'
DTD = b'<!DOCTYPE graphml [<!ENTITY a "aaa">]><graphml><graph><node id="&a;"/></graph></graphml>'
LINK = b'{"nodes": [{"id": "a"}], "links": [{"source": "a", "target": "z"}]}'


@pytest.mark.parametrize(
    ("limit", "name", "content", "expected"),
    [
        ("MAX_LINES", "a.txt", b"1 2\n" * 4, "has more than 3 lines"),
        ("MAX_NODES", "a.txt", b"1 2\n3 4\n\xff", "line 2: begins node 4"),
        ("MAX_NODES", "a.json", b'{"nodes": [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}], "edges": []}', "at most 3"),
    ],
)
def test_too_many_lines_or_nodes_are_refused(limit: str, name: str, content: bytes, expected: str, monkeypatch):
    monkeypatch.setattr(tables, limit, 3)
    assert expected in complaint(name, content)


MTX = "%%MatrixMarket matrix coordinate "
ADJACENCY = '{"nodes": [{"id": "a"}, {"id": "b"}], "adjacency": [[{"id": "b"}], [{"id": "a"}]]}'
NAMED = (
    '<graphml><key id="d0" attr.name="label"/><graph><node id="0"><data key="d0">Rome</data></node>%s</graph></graphml>'
)
YED_NODE = '<node id="n%d"><data key="d6"><y:ShapeNode><y:NodeLabel>%s</y:NodeLabel></y:ShapeNode></data></node>'
YED_NODES = YED_NODE % (0, "Rome") + YED_NODE % (1, "Oslo")
YED = f'<graphml xmlns="http://g" xmlns:y="http://y"><graph>{YED_NODES}</graph></graphml>'

# The name of a file, its content, the edges by names of nodes (and nodes without an edge), and what it is read as; or
# a part of the sentence that refuses it.
FILES = [
    ("a.txt", "0 2.5 0\n2.5 0 1e3\n0 1e3 0\n", "0-1 1-2", "adjacency matrix"),
    ("a.txt", "1 1 0\n1 1 0\n0 0 1\n", "0-1 2", "adjacency matrix"),
    ("a.csv", ",0,1,2\n0,0,1,0\n1,1,0,1\n2,0,1,0\n", "0-1 1-2", "adjacency matrix"),
    ("a.csv", "0,1,1\n0,0,1\n0,0,0\n", None, "row 1 has 1 for node 2, row 2 has 0 for node 1"),
    ("a.csv", "0,1,1\n1,0,1\n", None, "has 2 rows of 3 numbers, but a matrix is square"),
    ("a.txt", "1 0\n0 1\n", None, "line 1: 'two rows of 0 and 1' may be a matrix or two edges: begin an edge"),
    ("a.txt", "0 1\n1 0\n", "0-1", "edge list"),
    ("a.txt", "1 2 3 4\n2 1 3 4\n3 1 2 4\n4 1 2 3\n", None, "the matrix is not symmetric: row 2 has 3 for node 3"),
    ("a.csv", "a,b,c\n7,2,0\n2,9,1\n0,1,5\n", "a-b b-c", "adjacency matrix"),
    ("a.csv", "a,7,2,0\nb,2,9,1\nc,0,1,5\n", "a-b b-c", "adjacency matrix"),
    ("a.txt", "a b c\na 7 2 0\nb 2 9 1\nc 0 1 5\n", "a-b b-c", "adjacency matrix"),
    ("a.csv", ",u,v,w\nu,0,1,0\nv,1,0,1\nw,0,1,0\n", "u-v v-w", "adjacency matrix"),
    ("a.csv", ",a,b,c\nb,2,9,1\na,7,2,0\nc,0,1,5\n", None, "has rows and columns of different names; name both"),
    ("a.csv", ",a,a,c\na,7,2,0\na,2,9,1\nc,0,1,5\n", None, "'a' is the name of two nodes; give each its own"),
    ("a.csv", "12,0,3,1,0,0\n0,8,0,2,0,1\n3,0,9,0,4,0\n1,2,0,5,0,0\n0,0,4,0,7,2\n", None,
     "line 1: '12 0 3 1 0 0' may be"),
    ("a.csv", "1,2,3,4\n9,0,2,0\n0,7,3,1\n2,3,5,0\n0,1,0,4\n", None, "line 1: '1 2 3 4' may be"),
    ("a.csv", "0,1,2,3\n1,0,1,1\n2,1,0,1\n3,1,1,0\n", None, "the first row and column of the matrix may be names"),
    ("a.txt", "2 -1 -1 0\n-1 3 -1 -1\n-1 -1 2 0\n0 -1 0 1\n", "0-1 0-2 1-2 1-3", "adjacency matrix"),
    ("a.txt", "0 -1 -1\n-1 0 0\n-1 0 0\n", None, "numbers below 0, which may be no edges"),
    ("a.txt", "0 4 inf\n4 0 2\ninf 2 0\n", None, "inf or numbers below 0, which may be no edges"),
    ("a.csv", "student,math,art\nann,1,0\nbob,0,1\ncy,1,1\n", None, "line 1: 'student math art' may be a header"),
    ("a.txt", "x 1 2 3\ny 1 2\n", "x-1 x-2 x-3 1-y 2-y", "adjacency lists"),
    ("a.csv", "x,1,2,3\ny,1,2,\n", None, "line 1: 'x 1 2 3' may be"),
    ("a.txt", "node neighbours\n1 2 3\n2 1\n3 1\n", None, "line 1: the header 'node neighbours' has fewer cells than"),
    ("a.txt", "4 4\n1 2 3\n2 1 3\n3 1 2 4\n4 3\n", None, "line 2: '1 2 3' may be"),
    ("a.txt", "[0, 1],\n[1, 2],\n", "0-1 1-2", "edge list"),
    ("a.txt", "{0, 1}\n {1, 2};\n", "0-1 1-2", "edge list"),
    ("a.csv", '"a", "b"\n"b", "c"\n', "a-b b-c", "edge list"),
    ("a.csv", '"(0, 0)","(1, 0)"\n"(1, 0)","(1, 1)"\n', "(0, 0)-(1, 0) (1, 0)-(1, 1)", "edge list"),
    ("a.txt", "0,1;\n1,2;\n", None, "line 1: the node '1;' has signs that no name has"),
    ("a.txt", "a -> b\nb -> c\n", None, "line 1: the node '->' has signs that no name has"),
    ("a.txt", "a | b\nc | d\n", None, "line 1: the node '|' has signs that no name has"),
    ("a.txt", "[(0, 1), (1, 2)]\n", None, "line 1: the node '[(0' has signs that no name has"),
    ("a.txt", "(0, 0) (1, 0) {}\n(1, 0) (1, 1) {}\n", None, "line 1: the node '(0' has signs that no name has"),
    ("a.txt", "0: [1]\n1: [0]\n", None, "line 1: the node '[1]' has signs that no name has"),
    ("a.txt", "e 1 2\ne 2 3\n", None, "line 1: edge 1-2 comes before the header `p edge N M`; begin with it"),
    ("a.txt", "p sp 3 2\na 1 2 5\na 2 3 7\n", None, "line 2: 'a 1 2 5' may be"),
    ("a.csv", "1.0,2.0\n2.0,3.0\n", None, "line 1: the node '1.0' is no whole number: write 1.0 as 1, as"),
    ("a.csv", "1e+16,2e+16\n2e+16,3e+16\n", None, "line 1: the node '1e+16' is no whole number"),
    ("a.txt", "1 2 0.5\n2 3 0.5\n1 3 0.7\n", None, "the matrix is not symmetric"),
    ("a.txt", "1 2 4\n2 1 3\n3 2 4\n4 3 1\n", "1-2 1-4 2-3 3-4", "adjacency lists"),
    ("a.txt", "# networkx\n1 2 3\n2 3\n3\n4\n", "1-2 1-3 2-3 4", "adjacency lists"),
    ("a.txt", "1 2\n2\n3\n", "1-2 3", "adjacency lists"),
    ("a.txt", "a: b c\nb: a\nc : a\n", "a-b a-c", "adjacency lists"),
    ("a.adjlist", "1 2 3\n4\n", "1-2 1-3 4", "adjacency lists"),
    ("a.txt", "1 2 3\n2 3 4\n3 4 1\n4 1 2\n", None, "line 1: '1 2 3' may be an edge with more about it, or a node and"),
    ("a.txt", "4 6\n2 3 4\n1 3 4\n1 2 4\n1 2 3\n", None, "line 2: '2 3 4' may be"),
    ("a.txt", "This is a readme\nof two lines\n", None, "line 1: 'This is a readme' may be"),
    ("a.txt", "4 2\n0 1\n1 2\n", "0-1 1-2 3", "edge list below its numbers of nodes and edges"),
    ("a.txt", "3 4\n1 2\n2 3\n3 1\n3 2\n", "1-2 1-3 2-3", "edge list below its numbers of nodes and edges"),
    ("a.txt", "4 6\n0 1\n0 2\n0 3\n1 2\n1 3\n", None, "line 1: says 4 nodes and 6 edges; 5 lines follow; fix it"),
    ("a.txt", "5 4\n1 2\n2 3\n3 4\n4 1\n", None, "line 1: '5 4' may be an edge, or the numbers of nodes and edges"),
    ("a.txt", "4 3\n1 2\n2 3\n3 4\n", "1-2 2-3 3-4", "edge list"),
    ("a.csv", "From,To,km\n1,2,7\n2,3,7\n", "1-2 2-3", "edge list without its header 'From To km'"),
    ("a.tsv", "node1\tnode2\nx\ty\nw\tz\n", "x-y w-z", "edge list without its header 'node1 node2'"),
    ("a.txt", "u v\nv w\nw u\n", "u-v u-w v-w", "edge list"),
    ("a.csv", "Person,Friend\nann,bob\nbob,cat\n", "ann-bob bob-cat", "edge list without its header 'Person Friend'"),
    ("a.csv", "ann,bob\ncat,dan\n", None, "line 1: 'ann bob' may be a header or an edge: begin with a line"),
    ("a.csv", "source,target\n", None, "line 1: is a header without an edge below it"),
    ("a.csv", ",source,target\n0,a,b\n1,b,c\n", "a-b b-c", "edge list without its header ' source target'"),
    ("a.csv", "weight,src,dst\n7,a,b\n9,b,c\n", "a-b b-c", "edge list without its header 'weight src dst'"),
    ("a.csv", "0,a,b\n1,b,c\n", None, "line 1: '0 a b' may be an edge with more about it"),
    ("a.csv", '"New York",Boston,3\n# closed\nBoston,"Washington, D.C.",\n', "New York-Boston Boston-Washington, D.C.",
     "edge list, the first two columns"),
    ("a.csv", "a;b\nb;c d\n", "a-b b-c d", "edge list"),
    ("a.csv", 'a,"b\n', None, "line 1: is no CSV (unexpected end of data)"),
    ("a.txt", '"New York" Boston\n', "New York-Boston", "edge list"),
    ("a.txt", "1 2 0.5 # near\n2 3 0.7\n", "1-2 2-3", "edge list, the first two columns"),
    ("a.txt", "1 2 1\n1 3 1\n2 3 1\n3 4 1\n", "1-2 1-3 2-3 3-4", "edge list, the first two columns"),
    ("a.txt", "1 2 {'weight': 3, 'x': 1}\n2 3 {}\n", "1-2 2-3", "edge list"),
    ("a.txt", "10 9\n9 2\n9 9\n9 10\n", "2-9 9-10", "edge list"),
    ("a.txt", "1_0 9\n9 2\n", "1_0-9 9-2", "edge list"),
    ("a.txt", "1 2\t0.5\n2 3\t0.7\n", None, "line 1: the node '1 2' has blanks"),
    ("a.txt", "1,2\n2,3 # x\n", None, "line 2: the node '3 # x' has a comment in it"),
    ("a.txt", "1 2\n\n3\n", None, "line 3: '3' is alone; an edge list has two nodes per line"),
    ("a.txt", "one\ntwo\n", None, "line 1: 'one' is alone"),
    ("a.csv", "a,b\nb,c\n,c\n", None, "line 3: 'c' is alone"),
    ("a.txt", "# only a comment\n", None, "there is no edge"),
    ("a.txt", b"1 2\n\x80 3\n", None, "line 2: has bytes that are not UTF-8 text"),
    ("a.txt", "c a .col file\np edge 3 1\ne 1 2\n", "1-2 3", "DIMACS"),
    ("a.clq", "p col 3 2\nn 1 7\ne 1 2 5\ne 2 3\n", "1-2 2-3", "DIMACS"),
    ("a.mtx", MTX + "pattern symmetric\n% comment\n3 3 2\n2 1\n3 1\n", "1-2 1-3", "Matrix Market"),
    ("a.mtx", MTX + "real general\n3 3 4\n2 1 1.5\n1 2 1.5\n2 2 1\n3 1 0\n", "1-2 3", "Matrix Market"),
    ("a.mtx", MTX + "integer general\n3 2 0\n", None, "line 2: the matrix has 3 rows and 2 columns"),
    ("a.mtx", MTX + "pattern general\n3 3 1\n1 4\n", None, "line 3: entry (1, 4) is outside the 3 rows and columns"),
    ("a.mtx", MTX + "pattern general\n3 3 2\n1 2\n", None, "has no line `rows columns entries`, or another number of"),
    ("a.mtx", "3 3 1\n1 2\n", None, "line 1: there is no `%%MatrixMarket matrix coordinate pattern symmetric`"),
    ("a.graph", "% comment\n3 2\n2 3\n1\n1\n", "1-2 1-3", "METIS"),
    ("a.graph", "3 1\n\n3\n2\n\n", "1 2-3", "METIS"),
    ("a.graph", "3 2 011 2\n5 5 2 9 3 9\n5 5 1 9\n6 6 1 9\n", "1-2 1-3", "METIS"),
    ("a.graph", "3 2\n2 3\n1\n\n", None, "the header says 2 edges, the lines have 3 ends of 2"),
    ("a.graph", "3 2\n2 4\n1\n1\n", None, "line 2: edge 1-4 is outside the 3 nodes"),
    ("a.graph", "3 2\n2 x\n", None, "line 2: has words that are no numbers; a .graph file has `nodes edges`"),
    ("a.json", ADJACENCY, "a-b", "adjacency data"),
    ("a.json", '{"nodes": [{"id": "b"}, {"id": 1}, {"id": "x"}], "links": [{"source": "b", "target": 1}]}', "b-1 x",
     "node-link data"),
    ("a.json", '{"nodes": [{"id": "b"}, {"id": 1}], "edges": [{"source": "b", "target": 1}]}', "b-1", "node-link data"),
    ("a.json", '{"adjacency": {"shape": [2, 2], "data": [[true, true], [true, false]]}}', "0-1", "JSON with a matrix"),
    ("a.graphml", NAMED % "", "Rome", "GraphML"),
    ("a.graphml", NAMED % '<node id="1"/>', "0 1", "GraphML"),
    ("a.graphml", YED, "Rome Oslo", "GraphML"),
    ("a.col", b"p edge 3 2\ne 1 2\ne 2 4\n", None, "line 3: edge 2-4 is outside the nodes 1..3 of the header"),
    ("a.col", b"", None, "there is no line `p edge N M`"),
    ("a.col", b"p edge 0 0\n", None, "line 1: the graph has 0 nodes"),
    ("a.col", b"p edge 3 1\np edge 3 1\n", None, "line 2: 'p edge 3 1' is neither `c`, one `p edge N M`"),
    ("a.col", b"p edge 3 1\r\n\r\na 1 2\r\n", None, "line 3: 'a 1 2' is neither"),
    ("a.col", b"p edge 12 1\ne 1 1_0\n", None, "line 2: 'e 1 1_0' is neither"),
    ("a.col", "p edge 12 1\ne \u0661 2\n".encode(), None, "line 2: 'e "),
    ("a.col", b"p edge 3 0\nc " + b"x" * 1_000_000, None, "line 2: has more than 1000000 bytes"),
    ("a.col", b"\x00\xff\xfe binary", None, "line 1: '\\x00\ufffd\ufffd binary' is neither"),
    ("a.graphml", b"<graphml>\n<graph>", None, "no element found: line 2"),
    ("a.graphml", b"<graphml></graphml>", None, "it is not a <graphml> with one plain graph"),
    ("a.graphml", GRAPHML % b"<edge/>", None, "a node, or an end of an edge, has no id"),
    ("a.graphml", GRAPHML % b"<hyperedge/>", None, "a second graph or a hyperedge cannot be read"),
    ("a.graphml", DTD.decode().encode("utf-16"), None, "DTDForbidden"),
    ("a.graphml", b'<?xml version="1.0" encoding="no-such"?><graphml/>', None, "unknown encoding"),
    ("a.json", b'{"adjacency":\n\n oops}', None, "broken JSON (Expecting value: line 3 column 2 (char 16)); write"),
    ("a.json", b"[" * 100_000, None, "broken JSON (maximum recursion depth exceeded"),
    ("a.json", b'{"n": ' + b"9" * 5000 + b"}", None, "broken JSON (Exceeds the limit"),
    ("a.json", b"[1, 2]", None, "is JSON without the key `adjacency`"),
    ("a.json", b'{"nodes": [{"id": 1}, {"id": "1"}], "links": []}', None, "two nodes have the same `id`"),
    ("a.json", LINK, None, "is no data of networkx (KeyError(b'z')): `nodes` must"),
    ("a.json", json_of(False, {"adjacency": {"shape": [10**9, 10**9], "data": []}}), None, "the graph has 0 nodes"),
    ("a.json", json_of(False, {"adjacency": {"shape": [4, 4], "data": [0] * 10}}), None,
     "shape of `adjacency` is [4, 4]; it must be [n, n], with n x n numbers"),
    ("a.json", json_of(False, {"adjacency": {"shape": [4, 4], "data": [[0] * 4] * 3 + [[0]]}}), None,
     "or its rows are uneven"),
    ("a.json", json_of(False, {"adjacency": [[0]]}), None, "`adjacency` is [[0]]; it must be an object"),
    ("a.json", json_of(False, {"adjacency": {"shape": [2, 2], "data": [0, 1, 0, 0]}}), None,
     "not symmetric: (0, 1) is 1, (1, 0)"),
    ("a.json", json_of(False, {"adjacency": {"shape": [2, 2], "data": [0, 2, 2, 0]}}), None,
     "`adjacency` has 2 at place 1; it takes whole numbers in 0..1"),
    ("a.json", json_of(False, {"coloring": [0, 1, 2]}), None, "`coloring` has 3 numbers; 4 nodes need 4"),
    ("a.json", json_of(False, {"coloring": [0, 1, 1.5, 0]}), None, "`coloring` has 1.5 at place 2"),
    ("a.json", json_of(False, {"coloring": [0, 1, 2, None]}), None, "`coloring` is not a list of numbers"),
    ("a.json", json_of(False, {"graph_type": 8}), None, "`graph_type` is 8; it must be one of random_sparse"),
    ("a.json", json_of(False, {"graph_type": True}), None, "`graph_type` is True"),
    ("a.json", json_of(True, {"n": None}), None, "shape of `adjacency` is [None, None]"),
    ("a.json", json_of(True, {"ground_truth": None}), None, "`ground_truth` is None; it must be an object"),
    ("a.json", json_of(True, {"ground_truth": {"node_colors": [0, 0, 0, 9]}}), None, "`node_colors` has 9 at place 3"),
    ("a.json", json_of(True, {"ground_truth": {"graph_type_id": -1}}), None, "`graph_type_id` is -1"),
]  # fmt: skip
SEPARATORS = {"\t": [" \t "], ";": ["\t"], ",": ["\t", ";", " , "], " ": [",", "\t", ";", " \t", "   "]}


def variants(name: str, content: str) -> list[str]:
    """The same table with other separators and ends of lines, and with a byte order mark."""
    others = [content.replace("\n", "\r\n"), content.replace("\n", "\r"), "\ufeff" + content, content.rstrip("\n")]
    is_plain = name.endswith(("txt", "csv", "tsv")) and re.fullmatch(r"[\w.,;\s]*", content) and "p edge" not in content
    if is_plain:
        separator = next(sign for sign in SEPARATORS if sign in content)
        others += [content.replace(separator, other) for other in SEPARATORS[separator]]
    return others


@pytest.mark.parametrize(("name", "content", "edges", "said"), FILES, ids=count())
def test_a_file_is_read_as_the_graph_that_it_is_or_refused(name: str, content, edges: str | None, said: str):
    if edges is None:
        assert said in complaint(name, content if isinstance(content, bytes) else content.encode())
        return
    for variant in [content, *variants(name, content)]:
        instance = sources.parse(name, variant.encode())
        names, ends = list(map(str, instance.names)) or list(map(str, range(instance.graph.num_nodes))), instance.graph
        found = {f"{names[u]}-{names[v]}" for u, v in ends.edges.tolist()}
        found |= {names[v] for v in np.flatnonzero(ends.degrees() == 0)}
        assert len(names) == ends.num_nodes and instance.kind == said, variant
        rest = edges
        for each in sorted(found, key=len, reverse=True):
            assert each in rest, variant
            rest = rest.replace(each, "", 1)
        assert not rest.strip(), variant


def test_distances_and_values_in_a_dimacs_file_and_a_wrong_number_of_edges_are_noted():
    content = b"cJos\xe9\np col 3 7\nn 1 7\nd 2\n\ne 1 2\n  e 2 1\ne 2 2\ne 2 3 5\n"
    read = sources.parse("a.col", content)
    assert read.graph.edges.tolist() == [[0, 1], [1, 2]] and read.warning == (
        "a.col: the header says 7 edges, the file has 2; these are used; distances of edges are not used: "
        "this is plain coloring; values of nodes are not used: this is plain coloring"
    )
    edges = b"e 1 2\ne 2 1\ne 2 3\n"
    assert [sources.parse("a.col", b"p edge 3 %d\n" % stated + edges).warning for stated in (2, 3)] == ["", ""]


def test_graphml_has_its_nodes_in_order_without_directions_parallel_edges_and_foreign_elements():
    nodes = b"".join(b'<node id="%c"/>' % letter for letter in b"bac")
    foreign = b'<data><node id="d"/></data><x:node xmlns:x="http://x" id="e"/><x:graph xmlns:x="http://x"/>'
    edges = b'<edge source="c" target="x"/><edge source="x" target="c"/><edge source="c" target="c"/>'
    read = sources.parse("a.graphml", GRAPHML % (nodes + foreign + edges))
    assert read.graph.num_nodes == 4 and read.graph.edges.tolist() == [[2, 3]]


def peak_of(work: Callable[[], object]) -> int:
    """The most memory that Python and numpy had in addition."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_would_fill_the_memory_is_refused_before_it_does(tmp_path: Path, monkeypatch):
    # numpy would make a place as large as the string for each of the numbers: 100 GB.
    strings = json.dumps({"adjacency": {"shape": [2, 2], "data": ["x" * 10**5, *[0] * 10**6]}}).encode()
    assert complaint("graph.json", strings).startswith("`adjacency` is not a list of numbers")
    assert "has more than 2000000 lists, objects and quotes" in complaint("graph.json", b"[]," * 2_000_001)
    monkeypatch.setitem(formats.FORMATS, ".col", formats.Format(formats.parse_dimacs, 1_000_000))
    for size in (1_000_000, 50_000_000):
        (tmp_path / f"{size}.col.gz").write_bytes(gzip.compress(b"p edge 1 0".ljust(size), 1))

    def read() -> None:
        with pytest.raises(UserError, match="unpacks to more than 1 MB"):
            sources.read(tmp_path / "50000000.col.gz")

    assert sources.read(tmp_path / "1000000.col.gz").graph.num_nodes == 1
    assert peak_of(read) < 10_000_000


@pytest.mark.parametrize("name", ["a.col", "a.edges"])
def test_an_edge_takes_less_than_fifty_bytes_while_it_is_read(name: str):
    ring = [(i, i % 20_000 + 1) for i in range(1, 20_001)]
    lines = [b"%s%d %d" % (b"e " * (name == "a.col"), *pair) for pair in ring * 2]
    content = b"\n".join([b"p edge 20000 40000"] * (name == "a.col") + lines)
    nodes = 200 * 20_000 * (name == "a.edges")  # their labels
    assert peak_of(lambda: sources.parse(name, content)) < 50 * 40_000 + nodes


def test_folders_are_searched_to_the_bottom_in_the_order_of_names(tmp_path: Path):
    names = ["b/2.json", "b/1.col", "a.graphml", "b/c/x.COL.gz", "pool.tar.gz", "z.edgelist"]
    others = ["metadata.json", ".hidden.json", "b/readme.txt", "b/._1.col", "notes.md", "weights.gz"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "link").symlink_to(tmp_path)
    found = sources.find([tmp_path, tmp_path / "a.graphml", tmp_path / "b" / "link", tmp_path / "b" / "readme.txt"])
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "a.graphml", "pool.tar.gz", "z.edgelist", "b/1.col", "b/2.json", "b/c/x.COL.gz", "b/readme.txt",
    ]  # fmt: skip


def test_a_graph_is_named_after_its_file():
    names = [sources.parse(file, b"p edge 1 0").graph.name for file in ("a/DSJC125.1.col", "b.COL", "c.col.gz")]
    assert names == ["DSJC125.1", "b", "c"]
    assert sources.parse("a/\udcff.col", b"p edge 1 0").graph.name.encode()


def test_sources_without_graphs_are_named(tmp_path: Path, monkeypatch):
    with pytest.raises(UserError, match=r"absent: no such file or folder; name one"):
        sources.find([tmp_path / "absent"])
    with pytest.raises(UserError, match=r"no graph files here; known are \.json, \.col"):
        sources.find([tmp_path])
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, os.strerror(13), str(tmp_path))))
    with pytest.raises(UserError, match=r"the folder cannot be read \(permission denied\)"):
        sources.find([tmp_path])


PACKED = ["manifest.json", "graphs.safetensors"]
FULL, IMPORTED, OTHER = ([f"{folder}/{name}" for name in PACKED] for folder in ("full", "imported", "cpu-1"))
COLS = ["a.col", "b/c.json.gz"]
NONE = "none in training_data, so 1,250 of recipe cpu are generated; name yours with --data"


@pytest.mark.parametrize(
    ("names", "said", "graphs", "imported"),
    [
        ([], NONE, "training_data/cpu-0", None),
        (["README.md", ".hidden.csv", *OTHER], NONE, "training_data/cpu-0", None),
        ([f"cpu-0/{name}" for name in PACKED], "training_data/cpu-0, generated before", "training_data/cpu-0", None),
        (PACKED + COLS + FULL, "training_data (packed)", "training_data", None),
        ([*OTHER, *IMPORTED, "a.txt"], "training_data/imported (packed)", "training_data/imported", None),
        ([f"x/cpu-1/{name}" for name in PACKED], "training_data/x/cpu-1 (packed)", "training_data/x/cpu-1", None),
        ([*OTHER, "a.col", "a.csv"], "training_data (1 file to import)", "runs/cpu/data", "training_data"),
        (["x.tar", "b/y.tgz"], "training_data (2 files to import)", "runs/cpu/data", "training_data"),
        (["../training_data.tgz", *OTHER, "a.txt"], "training_data.tgz (to import)", "runs/cpu/data",
         "training_data.tgz"),
        (["../training_data.tar.gz", *COLS], "training_data (2 files to import); not read: training_data.tar.gz "
         "beside it", "runs/cpu/data", "training_data"),
        (["../training_data.tar", *FULL], "training_data/full (packed); not read: training_data.tar beside it",
         "training_data/full", None),
        (FULL + IMPORTED, "training_data/full (packed) and in training_data/imported (packed): name one with --data",
         None, None),
        (FULL + COLS, "training_data/full (packed) and in training_data (2 files to import): name one with --data",
         None, None),
        (["b/a.csv", "x.tsv"], "training_data/x.tsv: is this a graph? Name it with --data, several with `coloring-gnn",
         None, None),
        ([*OTHER, "b/a.txt.gz"], "import training_data/b/*.gz`, or move it out of training_data", None, None),
    ],
)  # fmt: skip
def test_without_data_the_job_takes_what_is_in_training_data_or_refuses_what_it_cannot_decide(
    names: list[str], said: str, graphs: str | None, imported: str | None, tmp_path: Path, monkeypatch
):
    home = tmp_path / "training_data"
    home.mkdir()
    for path in map(home.joinpath, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    if graphs is None:
        with pytest.raises(UserError, match=re.escape(said)):
            location.locate(RunSettings())  # of preset cpu
    else:
        expected = location.DataLocation(Path(graphs), said, imported and Path(imported), "generated" in said)
        assert location.locate(RunSettings()) == expected


@pytest.mark.parametrize("name", [".gz", "a.col/.gz", ".col", "absent.col", "n" * 300 + ".col", "graph.xlsx"])
def test_a_file_that_is_no_graph_is_named(tmp_path: Path, name: str):
    (tmp_path / "a.col").mkdir()
    message = rf"{name}: (is not a known kind of graph file; known are \.json|cannot be read)"
    with pytest.raises(UserError, match=message):
        sources.read(tmp_path / name)


def member(name: str, content: bytes = b"", size: int | None = None, format: int = tarfile.GNU_FORMAT, **fields):
    """The bytes of a member; size: what its header claims."""
    header = tarfile.TarInfo(name)
    header.size = len(content) if size is None else size
    for key, value in fields.items():
        setattr(header, key, value)
    return header.tobuf(format) + content + bytes(-len(content) % 512)


MEMBER = member("a.col", COL)
END = bytes(1024)


@pytest.mark.parametrize("name", ["pool.tar.gz", "pool.tgz", "pool.tar"])
def test_an_archive_is_unpacked_inside_its_folder_and_only_its_graphs(tmp_path: Path, name: str):
    members = [("data/metadata.json", b"{}"), ("graphs/a.col", COL), ("/b.col", COL), ("./c/d.col", COL)]
    content = b"".join(starmap(member, [*members, ("data/._b.col", b"\x00"), ("README.txt", b"hello")])) + END
    (tmp_path / name).write_bytes(content if name == "pool.tar" else gzip.compress(content))
    inside = tmp_path / "unpacked"
    unpacked = sources.unpack(tmp_path / name, inside)
    assert unpacked == [inside / "b.col", inside / "c" / "d.col", inside / "graphs" / "a.col"]
    assert all(same(sources.read(path).graph, TAILED) for path in unpacked)
    assert sorted(tmp_path.iterdir()) == [tmp_path / name, inside]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"no archive", "is damaged (ReadError"),
        (lzma.compress(MEMBER + END), "is damaged (ReadError"),
        (MEMBER, "ends too early"),
        (MEMBER + END + MEMBER, "more follows its end"),
        (MEMBER + MEMBER.replace(b"ustar", b"ustaR") + END, "more follows its end"),
        (member("../a.col") + END, "is damaged (OutsideDestinationError: '../a.col' would be extracted"),
        (member("a.col", size=1 << 40), "'a.col' has holes or is too large: 1099511627776 bytes"),
        (member("a.txt", size=1 << 32), "unexpected end of data"),
        (member("x", b"9999999 path=a.col", type=tarfile.XHDTYPE) + END, "is damaged"),
        (member("a.col", size=0, type=tarfile.GNUTYPE_SPARSE) + END, "'a.col' has holes"),
        (member("L", b"a.col", type=tarfile.GNUTYPE_LONGNAME) * 3000 + END, "is damaged"),
        (member("zero.col", type=tarfile.CHRTYPE, devmajor=1, devminor=5) + END, "has no graph files"),
        (member("link.col", type=tarfile.SYMTYPE, linkname="../secret.col") + END, "has no graph files"),
        (member("a" * 256 + ".col") + END, "name too long"),
        (member("a.col") + member("a.col/b.col") + END, "cannot be unpacked"),
    ],
    ids=count(),
)
@pytest.mark.parametrize("name", ["pool.tar", "pool.tar.gz"])
def test_a_hostile_archive_is_refused_at_once(tmp_path: Path, content: bytes, expected: str, name: str):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content, 1) if name.endswith("gz") and content[:1] not in b"B\xfd" else content)
    with pytest.raises(UserError) as caught:
        sources.unpack(path, tmp_path / "unpacked")
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "unpacked"]


def test_a_changed_byte_in_an_archive_that_is_not_compressed_further_is_found(tmp_path: Path):
    path = tmp_path / "pool.tar.gz"
    content = gzip.compress(MEMBER + END, 0)
    assert b"e 3 4" in content
    path.write_bytes(content.replace(b"e 3 4", b"e 1 4"))
    with pytest.raises(UserError, match=r"pool.tar.gz: is damaged \(BadGzipFile: CRC check failed"):
        sources.unpack(path, tmp_path / "unpacked")


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_tar_format_are_read(tmp_path: Path, format: int):
    names = ["a.col", f"{'d' * 99}/{'b' * 90}.col", "ö.col"]
    names += [f"{'d' * 150}/{'e' * 150}.col"] * (format != tarfile.USTAR_FORMAT)
    (tmp_path / "pool.tar").write_bytes(b"".join(member(name, COL, format=format) for name in names) + END)
    unpacked = sources.unpack(tmp_path / "pool.tar", tmp_path / "unpacked")
    assert {str(path.relative_to(tmp_path / "unpacked")) for path in unpacked} == set(names)
