"""The command line: `coloring-gnn COMMAND [flags]`. It loads a command's libraries after the flags are read."""

import atexit
import gc
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

PROGRAM = "coloring-gnn"
is_program = __name__ == "__main__" or Path(sys.argv[0]).name == PROGRAM
if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell has switched it off
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `interruptible`: Ctrl-C ends these imports without a traceback

from gnn_training import __version__, processes  # noqa: E402
from gnn_training.errors import StorageError, UserError  # noqa: E402
from gnn_training.files import DISK_ERRORS, reason  # noqa: E402

if TYPE_CHECKING:
    from gnn_training.settings import Settings

SHARED_MEMORY = Path("/dev/shm")
INSTALL_EXTRA = "install the extra, pip install '.[train]' in a clone"


class Command(NamedTuple):
    """What a command does, its settings, and the function in gnn_training.jobs that does it."""

    help: str
    settings: str
    job: str


COMMANDS = {
    "run": Command("Do the whole job: data, check, train, export, verify, evaluate, pack.", "RunSettings", "run.run"),
    "check": Command("Check whether `run` can start, and estimate time and memory.", "CheckSettings", "check.check"),
    "generate": Command("Generate graphs with good colorings to train on.", "GenerateSettings", "dataset.generate"),
    "import": Command("Read and color your graphs to train on them.", "ImportSettings", "dataset.import_graphs"),
    "train": Command("Train the network on packed graphs, or resume a training.", "TrainSettings", "train.train"),
    "export": Command("Write the trained network as one verified ONNX file.", "ExportSettings", "export.export"),
    "evaluate": Command("Count colors, beside those of DSATUR and TabuCol.", "EvaluateSettings", "evaluate.evaluate"),
    "pack": Command("Pack the exported model and its records into one archive.", "PackSettings", "pack.pack"),
    "push": Command("Push the packed archive to the Hugging Face Hub.", "PushSettings", "push.push"),
    "color": Command("Color one graph, or many.", "ColorSettings", "color.color"),
    "serve": Command("Show a page on this machine that colors graphs.", "ServeSettings", "serve.serve"),
}  # fmt: skip


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 2 to 6 after an error that one sentence explains, 141 if the reader of the
    output has ended, or 128 + number of a signal.
    SystemExit(2) for flags that cannot be read; or with the exit code of a job that has explained it.
    """
    atexit.register(gc.freeze)  # otherwise the last collection takes a second for what torch has loaded
    _set_up_output()
    os.environ["MPLBACKEND"] = "agg"  # figures go to files; a notebook names a backend that is not there
    # Before torch loads OpenMP: beside other work, threads that spin while they wait take up to ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with processes.interruptible():
            _run(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        return _explain(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gnn_training"):
            raise
        return _explain(UserError(f"this command needs {error.name}: {INSTALL_EXTRA}"))
    except KeyboardInterrupt as interrupt:
        return 128 + (interrupt.args or [signal.SIGINT])[0]
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has ended
            return _without_output(141)
        if error.errno not in DISK_ERRORS:
            raise
        place, hint = error.filename or "the output", "make room"
        # The error of a semaphore, which processes share, names no file.
        if not error.filename and SHARED_MEMORY.exists() and shutil.disk_usage(SHARED_MEMORY).free < 2**12:
            place, hint = SHARED_MEMORY, "make room, in a container with --shm-size=1g"
        return _without_output(_explain(StorageError(f"{place} cannot be written ({reason(error)}); {hint}")))


def _set_up_output() -> None:
    """Make output possible where there is none, and in any encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever has started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


def _without_output(exit_code: int) -> int:
    """Return the exit code, and send what is left of the output, which Python writes at its end, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code


def _explain(error: UserError) -> int:
    sys.stderr.write(f"{PROGRAM}: {error}\n")
    return error.exit_code


def _run(args: Sequence[str]) -> None:
    name, *flags = args or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: {PROGRAM} COMMAND [flags]\n\ncommands:")
        print("".join(f"  {name:11}{command.help}\n" for name, command in COMMANDS.items()))
        print(f"flags of a command: {PROGRAM} COMMAND --help")
    elif name == "--version":
        print(__version__)
    elif name not in COMMANDS:
        raise UserError(f"there is no command {name}: take one of {', '.join(COMMANDS)}")
    else:
        settings, dry_run = parse(name, flags)
        if dry_run and name not in ("run", "push"):  # these show the commands of the steps, and the model card
            print(settings.model_dump_json(indent=2))
            return
        from gnn_training.console import set_up_logging

        set_up_logging()
        module, function = COMMANDS[name].job.split(".")
        job = getattr(importlib.import_module(f"gnn_training.jobs.{module}"), "dry_run" if dry_run else function)
        job(settings)


def parse(name: str, flags: Sequence[str]) -> "tuple[Settings, bool]":
    """The settings of a command, and whether only to show them; see `flags.parse`."""
    from gnn_training import settings
    from gnn_training.flags import parse

    command = COMMANDS[name]
    return parse(getattr(settings, command.settings), f"{PROGRAM} {name}", command.help, flags)


if __name__ == "__main__":
    sys.exit(main())
