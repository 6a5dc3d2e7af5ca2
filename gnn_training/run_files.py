"""Names in a run folder, and of what `pack` makes of it."""

CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINTS = f"step-{8 * '[0-9]'}.pt"
BEST = "best.pt"  # the checkpoint whose weights are exported
CONFIG = "config.json"  # settings of the training
METRICS = "metrics.jsonl"
STATUS = "status.json"  # how the training ended
CURVES_FOLDER = "tensorboard"
STEPS = "steps.json"  # of the whole job
REPORT = "report.json"  # of the evaluation
PAGE = "report.html"
ARCHIVE = "trained_model.tar.gz"  # in the folder of the model
ARCHIVE_MANIFEST = "manifest.json"  # where the model comes from
