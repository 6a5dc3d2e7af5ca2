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
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gnn_training.errors import UserError

QUICK_EXAMPLES = 200
ROUND = 2000  # examples with one seed
HANG_SECONDS = 10
MEMORY = 1 << 30  # bytes that a target may need in addition
SECONDS = float(os.environ.get("FUZZ_SECONDS", 0))
SEED = int(os.environ.get("FUZZ_SEED", 0))


def explore(check: Callable[..., str | None], *strategies: SearchStrategy, quick: int = QUICK_EXAMPLES) -> None:
    """Call check(*values) with generated values. It returns a word for what happened, such as "accepted", which is
    counted. AssertionError if a call takes longer than 10 s, or if all together need 1 GB more of memory.

    quick: number of calls when FUZZ_SECONDS is not set.
    """
    outcomes: Counter[str] = Counter()
    before, started, seed = _peak_bytes(), time.monotonic(), SEED

    def counted(values: tuple) -> None:
        with _no_hang():
            outcomes[check(*values) or "done"] += 1

    while True:
        # A failure is made small by Hypothesis, then shown with its values.
        phases = (Phase.generate, Phase.shrink)
        limits = settings(
            max_examples=ROUND if SECONDS else quick, deadline=None, database=None, phases=phases,
            suppress_health_check=list(HealthCheck), print_blob=False,
        )  # fmt: skip
        try:
            limits(hypothesis.seed(seed)(given(st.tuples(*strategies))(counted)))()
        except BaseException:
            print(f"FUZZ_SEED={seed}")
            raise
        seed += 1
        if time.monotonic() - started >= SECONDS:
            break
    more = _peak_bytes() - before
    assert more < MEMORY, f"{more / 1e6:.0f} MB more memory than before"
    _record(check, outcomes, time.monotonic() - started, more)


def refusal(error: UserError) -> str:
    """Check that an error is one sentence that ends without a line break; return "refused"."""
    text = str(error)
    assert text and "\n" not in text and "Traceback" not in text, text
    assert error.exit_code in (2, 3, 4, 5)
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


def _record(check: Callable[..., object], outcomes: Counter[str], seconds: float, more: int) -> None:
    if folder := os.environ.get("FUZZ_RESULTS"):
        content = {"seconds": round(seconds, 1), "peak_mb": round(more / 1e6), "outcomes": dict(outcomes)}
        Path(folder, f"{check.__module__}.{check.__qualname__}.json").write_text(json.dumps(content) + "\n")
