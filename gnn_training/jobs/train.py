"""Train a coloring network. The same command on the same folder resumes."""

import os
import sys
import time
from contextlib import nullcontext
from functools import partial

from gnn_training import machine, processes, run_files
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import join
from gnn_training.files import lock_folder, make_folder
from gnn_training.ranks import launch, num_ranks
from gnn_training.settings import TrainSettings
from gnn_training.training.logbook import require_logger
from gnn_training.training.trainer import Trainer

SAME_SIGNAL_SECONDS = 1.0  # signals within this time have one cause, such as a `timeout` that sends two


def train(settings: TrainSettings) -> None:
    """Train on all ranks: those that torchrun has started, or else those started here, one per GPU or core. UserError
    if machine, data, logger or run folder cannot be used, SystemExit if a signal stopped it; state is saved.
    """
    require_logger(settings.logger)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once per machine: a gigabyte takes a second
        PackedGraphs.open(settings.data).verify()
    if "RANK" in os.environ:
        train_rank(settings)
    else:
        machine.select_gpus(settings.gpus)
        launch(train_rank, settings, num_ranks(settings))


def train_rank(settings: TrainSettings) -> None:
    """Train as one rank until the schedule, the time or the patience ends. SystemExit if a signal has stopped it."""
    signals: list[float] = []  # when a signal to stop came: the training saves its state and ends
    processes.handle_stop_signals(partial(_note_signal, signals))
    data = PackedGraphs.open(settings.data)
    with join(settings.device) as rt, lock_folder(settings.run) if rt.is_main else nullcontext():
        if rt.is_main:
            make_folder(settings.run / run_files.CHECKPOINT_FOLDER)
            if settings.self_play:
                make_folder(settings.run / run_files.GAMES_FOLDER)
        ended = Trainer(settings, data, rt).run(signals)
    if ended == "stopped":
        sys.exit(processes.STOPPED)  # without a result, for which torchrun would keep the process


def _note_signal(signals: list[float], number: int, _frame: object) -> None:
    """Note when a signal to stop came. A later one ends this process if it is the only rank; of several ranks, the
    process that has started them decides, because Ctrl-C reaches the ranks directly, too.
    """
    now = time.monotonic()
    if signals and now - signals[0] > SAME_SIGNAL_SECONDS and "RANK" not in os.environ:
        os._exit(128 + number)
    signals.append(now)
