"""The DIMACS readers of Python and of the Rust crate agree on every content: the same graph, or both refuse it."""

import subprocess
from collections.abc import Iterator

import pytest
import test_rust
from fuzzing import col, damaged, explore, random_graph, refusal
from test_rust import CRATE

from gnn_training.data.formats import parse_dimacs
from gnn_training.errors import UserError

pytestmark = [pytest.mark.fuzz, *test_rust.pytestmark]


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

    explore(check, damaged(lambda rng: col(random_graph(rng))), quick=500)
