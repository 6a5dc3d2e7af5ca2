"""numba.njit with a cache on the disk. Without a usable cache (missing, damaged, read-only), it compiles again."""

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba.core.caching import FunctionCache

from gnn_training.files import reason

log = logging.getLogger(__name__)
HINT = "the search is compiled at every start; name a folder in NUMBA_CACHE_DIR"


def njit(cache: bool = False, **options: Any) -> Callable[[Callable], Any]:
    """numba.njit. cache: keep the compiled code on the disk, if a folder can be written."""

    def compiled(function: Callable) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cache:
            try:
                dispatcher._cache = Cache(function)  # numba's enable_caching does this with its own class
            except RuntimeError:
                warn(f"there is no folder to keep compiled code in: {HINT}")
        return dispatcher

    return compiled


class Cache(FunctionCache):
    """The cache files of a function. If they are damaged or missing, the function is compiled again."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function, or None if it must be compiled."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling half a file can raise any error
            warn(f"{self.cache_path}: files of numba are damaged or cannot be read; compiling again")
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function to the disk, or warn that this has failed."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # the disk fails, or a damaged index cannot be replaced
            warn(f"{self.cache_path}: cannot be written ({reason(error)}): {HINT}")


@functools.cache
def warn(sentence: str) -> None:
    """Log a sentence once."""
    log.warning(sentence)
