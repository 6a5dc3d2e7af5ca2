"""Cut an environment into parts, one per layer of the image.

    layers.py ENVIRONMENT PARTS

Torch and its CUDA are dealt out to PARTS/1 to PARTS/4, of about the same compressed size, so that a pull fetches them
side by side. Everything else, which changes more often, is PARTS/0.
"""

import os
import sys
import zlib
from pathlib import Path

HEAVY = ("torch", "triton", "nvidia")
NUM_PARTS = 4
MIB = 1 << 20


def main(environment: Path, parts: Path) -> None:
    """Move every file of `environment` to one of the `parts`, on the same file system."""
    folders = [parts / str(number) for number in range(1, NUM_PARTS + 1)]
    sizes = [0.0] * NUM_PARTS
    for size, path in sorted(((_packed_size(path), path) for path in _heavy_files(environment)), reverse=True):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += size
        _move(path, folders[smallest] / path.relative_to(environment))
    _move(environment, parts / "0")


def _heavy_files(environment: Path) -> list[Path]:
    packages = (environment.glob(f"lib/python3*/site-packages/{name}") for name in HEAVY)
    return [path for package in packages for folder in package for path in folder.rglob("*") if path.is_file()]


def _packed_size(path: Path) -> float:
    """Compressed size in bytes, guessed from every eighth MiB: fatbins hardly shrink, host code does by two thirds."""
    total = path.stat().st_size
    with path.open("rb") as file:
        samples = [os.pread(file.fileno(), MIB, offset) for offset in range(0, total, 8 * MIB)]
    return total * sum(len(zlib.compress(sample, 1)) for sample in samples) / max(1, sum(map(len, samples)))


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
