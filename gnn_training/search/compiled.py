"""numba.njit with a cache on the disk, which may be missing, damaged or read-only: then it compiles again."""

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
                dispatcher._cache = Cache(function)  # what its enable_caching does with numba's own class
            except RuntimeError:
                warn(f"there is no folder to keep compiled code in: {HINT}")
        return dispatcher

    return compiled


class Cache(FunctionCache):
    """The files of a compiled function, which is compiled again if they are damaged, and works if there are none."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function, or None if it must be compiled."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever the half of a pickle raises
            warn(f"{self.cache_path}: files of numba are damaged or cannot be read; compiling again")
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # of the disk, or an index that is damaged and could not be replaced
            warn(f"{self.cache_path}: cannot be written ({reason(error)}): {HINT}")


@functools.cache
def warn(sentence: str) -> None:
    """Log a sentence once."""
    log.warning(sentence)
