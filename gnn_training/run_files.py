"""Names of the files in a run folder, and of what `pack` makes from them."""

CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINTS = f"step-{8 * '[0-9]'}.pt"
BEST = "best.pt"  # the checkpoint whose weights are exported
CONFIG = "config.json"  # settings of the training
METRICS = "metrics.jsonl"
STATUS = "status.json"  # how the training ended
GAMES_FOLDER, GAMES = "self_play", "iteration-[0-9][0-9].npz"  # the games of self-play
CURVES_FOLDER = "tensorboard"
STEPS, SETTINGS_FOLDER = "steps.json", "settings"  # records and settings of the steps of the whole job
TENSORBOARD_LOG, LOGGER_ID = "tensorboard.log", "logger_id"
REPORT = "report.json"  # scores of the evaluation
PAGE = "report.html"
ARCHIVE = "trained_model.tar.gz"  # in the folder of the model
ARCHIVE_MANIFEST = "manifest.json"  # where the model comes from
