"""memory.py DATA: searches with less and less memory on a GPU, as JSON on stdout."""

import json
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
    result: dict[str, object] = {"peaks": [], "is_split": []}
    try:
        with join("cuda"):
            graphs = PackedGraphs.open(Path(data))
            ids = np.tile(np.arange(len(graphs)), COPIES)
            batch = DeviceDataset(graphs, torch.device("cuda")).batch(ids, Shape(len(ids), 48, 20))
            search, weights = GpuSearcher(), torch.stack([batch.change, -batch.change])
            for share in (None, 0.8, 0.2):
                if share:
                    torch.cuda.empty_cache()
                    limit = share * result["peaks"][0] / torch.cuda.mem_get_info()[1]
                    torch.cuda.set_per_process_memory_fraction(limit)
                torch.cuda.reset_peak_memory_stats()
                fewest, _ = search(weights, batch, 5)
                assert fewest.shape == weights.shape[:2]
                result["peaks"].append(torch.cuda.max_memory_reserved())
                result["is_split"].append(search.is_split)
    except MachineError as error:
        result["sentence"] = str(error)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
