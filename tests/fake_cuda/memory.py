"""memory.py DATA: searches with too little memory on a GPU; the sentence that follows on stdout."""

import sys
from pathlib import Path

import numpy as np
import torch

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import join
from gnn_training.errors import MachineError
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.sampler import Shape
from gnn_training.training.searcher import GpuSearcher

COPIES = 200  # of every graph: enough that searches need far more memory than anything else


def main(data: str) -> None:
    try:
        with join("cuda"):
            graphs = PackedGraphs.open(Path(data))
            ids = np.tile(np.arange(len(graphs)), COPIES)
            batch = DeviceDataset(graphs, torch.device("cuda")).batch(ids, Shape(len(ids), 48, 20))
            search, weights = GpuSearcher(), torch.stack([batch.change, -batch.change])
            search(weights, batch, 5)
            torch.cuda.empty_cache()
            limit = 0.8 * torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(limit)
            search(weights, batch, 5)
    except MachineError as error:
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
