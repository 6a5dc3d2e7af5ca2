"""Searches in numba's CUDA simulator, in a process of its own: python simulated_cuda.py <tasks> <found>, two pickles.

A task is a dictionary of the arguments of search_cuda.search.
"""

import os
import pickle
import sys
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba is imported

from gnn_training.solve import search_cuda  # noqa: E402

if __name__ == "__main__":
    # Half of the time went into waiting for the thread that polls the others, and into the simulator's wrappers of
    # device functions, which find their `cuda` without them, too.
    sys.setswitchinterval(1e-5)
    vars(search_cuda).update({k: v.py_func for k, v in vars(search_cuda).items() if getattr(v, "_device", False)})
    found = [search_cuda.search(**task) for task in pickle.loads(Path(sys.argv[1]).read_bytes())]
    Path(sys.argv[2]).write_bytes(pickle.dumps([tuple(each) for each in found]))
