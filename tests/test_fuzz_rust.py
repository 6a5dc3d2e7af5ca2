"""The DIMACS readers of Python and of the Rust crate agree on every content: the same graph, or both refuse it."""

import subprocess
from collections.abc import Iterator

import pytest
from fuzzing import explore, refusal
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from test_rust import CRATE, UNABLE

from gnn_training.data.formats import parse_dimacs
from gnn_training.errors import UserError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(bool(UNABLE), reason=UNABLE)]
WORDS = (
    b"p", b"edge", b"edges", b"col", b"e", b"c", b"n", b"d", b"v", b"x", b"0", b"1", b"2", b"3", b"4", b"02", b"+1",
    b"-1", b"1_0", b"1.0", b"1e1", b"0x1", b"\xd9\xa1", b"1000001", b"100000000000", b"9" * 18, b"9" * 19, b"9" * 400,
    b"\xff", b"\xef\xbb\xbf", b"\0", b"\x1c", b"\xc2\xa0", b"\xe2\x80\xa8",
)  # fmt: skip
BLANK = st.sampled_from([b" "] * 8 + [b"\t", b"  ", b"\x0b", b"\x0c", b"\x85", b""])
END = st.sampled_from([b"\n"] * 20 + [b"\r\n", b"\r", b"\n\r", b"\r\r\n", b"\n\n", b""])
EDGE = st.builds(b"e %d %d".__mod__, st.tuples(st.integers(1, 7), st.integers(1, 7)))
HEADER = st.builds(b"p edge %d %d".__mod__, st.tuples(st.sampled_from([0, 6, 7, 7, 7, 9]), st.integers(0, 9)))
LINE = st.lists(st.tuples(BLANK, st.sampled_from(WORDS)), max_size=5).map(lambda words: b"".join(sum(words, ())))


def mostly(usual: SearchStrategy, odd: SearchStrategy) -> SearchStrategy:
    """One in sixteen is odd."""
    return st.integers(0, 15).flatmap(lambda number: odd if number == 7 else usual)


LINES = st.lists(st.tuples(mostly(EDGE, LINE), END), max_size=8)
FILE = st.builds(
    lambda start, header, lines: start + b"".join(header) + b"".join(sum(lines, ())),
    st.sampled_from([b""] * 5 + [b"\xef\xbb\xbf", b"\n", b"c \xff\r"]),
    st.tuples(mostly(HEADER, LINE), END), LINES,
)  # fmt: skip


@pytest.fixture(scope="module")
def crate() -> Iterator[subprocess.Popen[str]]:
    """The program that reads a file per line."""
    command = ["cargo", "run", "--quiet", "--locked", "--example", "edges"]
    subprocess.run([*command[:1], "build", *command[2:]], cwd=CRATE, check=True)
    with subprocess.Popen(command, cwd=CRATE, stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        yield process
        process.stdin.close()


def test_python_and_rust_read_the_same_graph_or_refuse_it(crate: subprocess.Popen[str]):
    def check(content: bytes) -> str:
        print(content.hex(), file=crate.stdin)
        by_rust = crate.stdout.readline()
        try:
            graph = parse_dimacs(content).graph
        except UserError as error:
            assert by_rust.startswith("line "), by_rust
            return refusal(error)
        assert by_rust == " ".join([str(graph.num_nodes), *(f"{u}-{v}" for u, v in graph.edges.tolist())]) + "\n"
        return "accepted"

    explore(check, mostly(FILE, st.binary(max_size=20)), quick=500)
