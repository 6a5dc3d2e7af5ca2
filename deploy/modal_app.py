"""Train on GPUs of Modal (modal.com) and fetch the result. Needs `pip install modal` and an account there.

modal run deploy/modal_app.py                             one B200, preset multi
modal run deploy/modal_app.py --gpus 8 --flags "--searches 800000"
modal run deploy/modal_app.py --gpu H200 --flags "--preset smoke --models models/trial"

Your own graphs, named with --flags "--data my_graphs.tar.gz":
modal volume create coloring-gnn && modal volume put coloring-gnn my_graphs.tar.gz

The same command continues a training that was interrupted: graphs, checkpoints and results stay on the volume
`coloring-gnn` until `modal volume delete coloring-gnn`.
"""

import os
import shlex
import subprocess
from pathlib import Path

import modal

ARCHIVE = "trained_model.tar.gz"
# Modal starts its own program in the container, so the entrypoint of the image has to go.
image = modal.Image.from_registry("registry.example/coloring-gnn:latest").entrypoint([])
volume = modal.Volume.from_name("coloring-gnn", create_if_missing=True)
app = modal.App("coloring-gnn")


@app.function(image=image, gpu="B200", volumes={"/workspace": volume}, timeout=24 * 3600)
def train(flags: list[str]) -> int:
    """Do the whole job; return its exit code. If Modal takes the machine away, the job saves, and Modal starts it again
    elsewhere, where it continues.
    """
    environment = os.environ | {"PYTHONPATH": "/opt/gnn"}  # Modal has its own
    with subprocess.Popen(["run_multigpu.sh", *flags], cwd=os.environ["GNN_WORKSPACE"], env=environment) as job:
        try:
            return job.wait()
        except KeyboardInterrupt:
            job.terminate()
            raise


@app.local_entrypoint()
def main(gpu: str = "B200", gpus: int = 1, flags: str = "") -> None:
    """Train on `gpus` GPUs, then write the archive of the trained model into the folder models/ here."""
    words = shlex.split(flags)
    folder = words[words.index("--models") + 1] if "--models" in words else "models"
    if code := train.with_options(gpu=f"{gpu}:{gpus}").remote(words):
        raise SystemExit(f"the job ended with exit code {code}; its last line tells why")
    archive = b"".join(volume.read_file(f"{folder}/{ARCHIVE}"))
    target = Path(folder) / ARCHIVE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive)
    print(f"fetched {target}")
