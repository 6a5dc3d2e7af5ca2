"""Searches in numba's CUDA simulator, in a process of its own: python simulated_cuda.py <tasks> <found>, two pickles.

A task is a dictionary of the arguments of search_cuda.search. The simulator is to be chosen before numba is imported.
"""

import os
import pickle
import sys
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from gnn_training.solve import search_cuda  # noqa: E402

if __name__ == "__main__":
    sys.setswitchinterval(1e-4)  # threads wait for each other thousands of times
    tasks = pickle.loads(Path(sys.argv[1]).read_bytes())
    found = [search_cuda.search(**task) for task in tasks]
    Path(sys.argv[2]).write_bytes(pickle.dumps([tuple(each) for each in found]))
