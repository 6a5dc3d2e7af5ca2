"""Tests with generated input: some hundred inputs in CI, and inputs until the time is up with ./test.sh --fuzz SECONDS.

FUZZ_SECONDS: how long each target is tried; unset for the quick form, which always tries the same inputs.
FUZZ_SEED: where the long form begins; printed when something is found. FUZZ_RESULTS: a folder for the counts.
"""

import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnn_training.errors import UserError

QUICK_EXAMPLES = 200
ROUND = 100  # examples with one seed
HANG_SECONDS = 10
MEMORY = 1 << 30  # bytes that a target may need in addition
SECONDS = float(os.environ.get("FUZZ_SECONDS", 0))
SEED = int(os.environ.get("FUZZ_SEED", 0))
Value = TypeVar("Value")


def explore(check: Callable[..., str | None], *strategies: SearchStrategy, quick: int = QUICK_EXAMPLES) -> None:
    """Call check(*values) with values that Hypothesis generates. It returns a word for what happened, such as
    "accepted", which is counted. AssertionError if a call takes longer than 10 s, or if all together need 1 GB more of
    memory.

    quick: number of calls when FUZZ_SECONDS is not set.
    """
    with _counted(check) as (call, is_over):
        for seed in count(SEED):
            # A failure is made small by Hypothesis, then shown with its values.
            limits = settings(
                max_examples=ROUND if SECONDS else quick, deadline=None, database=None, print_blob=False,
                phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            try:
                limits(hypothesis.seed(seed)(given(st.tuples(*strategies))(call)))()
            except BaseException:
                print(f"FUZZ_SEED={seed}")
                raise
            if is_over():
                break


def explore_seeded(
    check: Callable[[Value], str | None], make: Callable[[Random], Value], quick: int = QUICK_EXAMPLES
) -> None:
    """As `explore`, with values made by make(generator): many times as many in a second, but a failure is not made
    small.
    """
    with _counted(check) as (call, is_over):
        for seed in count(SEED):
            value = make(Random(seed))
            try:
                call((value,))
            except BaseException:
                print(f"FUZZ_SEED={seed}: {value!r:.10000}")
                raise
            if seed >= SEED + quick and is_over():
                break


@contextmanager
def _counted(check: Callable[..., str | None]) -> Iterator[tuple[Callable[[tuple], None], Callable[[], bool]]]:
    """Give the body a function that calls `check`, and one that tells whether the time is up."""
    outcomes: Counter[str] = Counter()
    before, started = _peak_bytes(), time.monotonic()

    def call(values: tuple) -> None:
        with _no_hang():
            outcomes[check(*values) or "done"] += 1

    yield call, lambda: time.monotonic() - started >= SECONDS
    more = _peak_bytes() - before
    assert more < MEMORY, f"{more / 1e6:.0f} MB more memory than before"
    if folder := os.environ.get("FUZZ_RESULTS"):
        seconds = round(time.monotonic() - started, 1)
        test = os.environ["PYTEST_CURRENT_TEST"].split()[0].rpartition("/")[2]
        content = {"test": test, "seconds": seconds, "peak_mb": round(more / 1e6), "outcomes": dict(outcomes)}
        Path(folder, f"{test.replace('::', '.')}.json").write_text(json.dumps(content) + "\n")


def refusal(error: UserError) -> str:
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


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
