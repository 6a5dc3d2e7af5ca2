"""Tests with generated input: some hundred inputs in CI, and inputs until the time is up with ./test.sh --fuzz SECONDS.

FUZZ_SECONDS: how long each target is tried; unset for the quick form, which always tries the same inputs.
FUZZ_SEED: where the long form begins; printed when something is found. FUZZ_RESULTS: a folder for the counts.
"""

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from gnn_training.errors import UserError

QUICK_EXAMPLES = 200
HANG_SECONDS = 10
MEMORY = 1 << 30  # bytes that a target may need in addition
SECONDS = float(os.environ.get("FUZZ_SECONDS", 0))
SEED = int(os.environ.get("FUZZ_SEED", 0))
Edges = list[tuple[int, int]]
# Words that have broken something, or whose meaning readers may see in another way.
TOKENS = [
    b"-1", b"0", b"1", b"2", b"+1", b"1_0", b"01", b"1.0", b"1e9", b"9" * 25, b"9" * 5000, b"NaN", b"null", b"true",
    "\u0661".encode(), "\u2003".encode(), "\U0001f600".encode(), b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n", b"\r",
    b"\r\n", b"\x0b", b"\x0c", b"\x1c", b"\x85", b" ", b"\t", b",", b"#", b"%", b"c ", b"e 1 2\n", b"p edge 2 1\n",
    b"n 1 1\n", b"edges", b"0x1", b"1e1", b"\n\r", b"\xc2\xa0", b"\xe2\x80\xa8", b"9" * 18, b"9" * 19, b'"',
    b"[" * 2000, b"{", b"}", b"[]", b"]", b":", b"x" * 70_000, b"<", b">", b"/>", b"&#49;", b"&lt;", b"&a;",
    b"<node id='1'/>", b"<edge source='1' target='2'/>", b"<graph>", b"</graph>", b"<!--", b"-->", b"<![CDATA[",
    b"]]>", b'<!DOCTYPE graphml [<!ENTITY a "1">]>', b"\x1f\x8b", b"1000001", b"32768", b"2147483648",
    b"-9223372036854775808",
]  # fmt: skip


def random_pairs(rng: Random) -> tuple[int, Edges]:
    """Number of nodes, and pairs of them."""
    num_nodes = rng.randint(1, 9)
    return num_nodes, [(rng.randrange(num_nodes), rng.randrange(num_nodes)) for _ in range(rng.randint(0, 12))]


def damage(content: bytes, rng: Random) -> bytes:
    """The content, in which up to three stretches are flipped, removed, doubled or replaced by zeros, as a crash of the
    machine leaves them, a token or any bytes.
    """
    for _ in range(rng.randint(0, 3)):
        start = rng.randint(0, len(content))
        middle = content[start : start + rng.randint(0, rng.choice([9, 9, 9, 600, 10**6]))]
        stop = start + len(middle)
        flipped = bytes(byte ^ 1 << rng.randint(0, 7) for byte in middle[:1]) + middle[1:]
        other = rng.choice([bytes(len(middle)), *rng.sample(TOKENS, 2), rng.randbytes(rng.randint(1, 6))])
        middle = rng.choice([flipped, b"", middle * 2, other, other])
        content = content[:start] + middle + content[stop:]
    return content


def damaged(valid: Callable[[Random], bytes]) -> Callable[[Random], bytes]:
    return lambda rng: damage(valid(rng), rng)


def col(graph: tuple[int, Edges]) -> bytes:
    lines = [f"p edge {graph[0]} {len(graph[1])}", *(f"e {u + 1} {v + 1}" for u, v in graph[1])]
    return "\n".join(lines).encode() + b"\n"


def edge_list(graph: tuple[int, Edges]) -> bytes:
    return "".join(f"{u} {v}\n" for u, v in graph[1]).encode()


def explore(check: Callable[[Any], str | None], make: Callable[[Random], Any], quick=QUICK_EXAMPLES) -> None:
    """Call check with values made by make(generator). It returns a word for what happened, such as "accepted", which is
    counted. AssertionError if a call takes longer than 10 s, or if all together need 1 GB more of memory. quick: number
    of calls when FUZZ_SECONDS is not set.
    """
    outcomes: Counter[str] = Counter()
    before, started = reset_peak(), time.monotonic()
    for seed in count(SEED):
        value = make(Random(seed))
        try:
            with _no_hang():
                outcomes[check(value) or "done"] += 1
        except BaseException:
            print(f"FUZZ_SEED={seed}: {value!r:.10000}")
            raise
        seconds = round(time.monotonic() - started, 1)
        if seed >= SEED + quick and seconds >= SECONDS:
            break
    more = peak_bytes() - before
    assert more < MEMORY, f"{more / 1e6:.0f} MB more memory than before"
    assert set(outcomes) != {"refused"}, "no input was accepted"
    if folder := os.environ.get("FUZZ_RESULTS"):
        test = os.environ["PYTEST_CURRENT_TEST"].split()[0].rpartition("/")[2]
        content = {"test": test, "seconds": seconds, "peak_mb": round(more / 1e6), "outcomes": dict(outcomes)}
        Path(folder, f"{test.replace('::', '.')}.json").write_text(json.dumps(content) + "\n")


def one_sentence(error: UserError) -> str:
    """Check that an error is one sentence that ends without a line break; return "refused"."""
    text = str(error)
    assert text and "\n" not in text and "Traceback" not in text, text
    assert error.exit_code in (2, 3, 4, 5, 6)
    return "refused"


@contextmanager
def _no_hang() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"takes longer than {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reset_peak() -> int:
    """Forget the most memory that this process has had; what it has now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
