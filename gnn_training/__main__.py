"""The door: `python -m gnn_training <command> [flags]`. Loads no job, and so no torch, before the flags are read."""

import argparse
import atexit
import contextlib
import gc
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Sequence

import tyro

from gnn_training import __version__, processes, settings
from gnn_training.errors import UserError
from gnn_training.settings import Settings

PROGRAM = "python -m gnn_training"
COMMANDS: dict[str, type[Settings]] = {
    "run": settings.RunSettings,
    "check": settings.CheckSettings,
    "generate": settings.GenerateSettings,
    "import": settings.ImportSettings,
    "preflight": settings.PreflightSettings,
    "train": settings.TrainSettings,
    "export": settings.ExportSettings,
    "evaluate": settings.EvaluateSettings,
    "pack": settings.PackSettings,
    "color": settings.ColorSettings,
}
JOBS = {"generate": "dataset.generate", "import": "dataset.import_graphs"}  # others have a module of their own name


def main(args: Sequence[str]) -> int:
    """Do one command; return the exit code: 0 done, 2 to 5 for people to mend (one sentence said), 130 interrupted."""
    try:
        return _main(args)
    except UserError as error:
        sys.stderr.write(f"gnn_training: {error}\n")  # in one piece, for all ranks may say it at once
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        if not processes.are_supervised():  # else whoever supervises is not done
            processes.rest()


def _main(args: Sequence[str]) -> int:
    command, *flags = args or ["--help"]
    if command in ("-h", "--help"):
        print(_overview())
    elif command == "--version":
        print(__version__)
    elif command not in COMMANDS:
        raise UserError(f"there is no command {command}: take one of {', '.join(COMMANDS)}")
    else:
        resolved = parse(command, flags)
        if resolved.dry_run and command != "run":  # which shows the commands of its steps
            print(resolved.model_dump_json(indent=2))
        else:
            _set_up_logging()
            module, _, function = JOBS.get(command, f"{command}.{command}").partition(".")
            getattr(importlib.import_module(f"gnn_training.jobs.{module}"), function)(resolved)
    return 0


def _overview() -> str:
    lines = [f"usage: {PROGRAM} <command> [flags]", "", "commands:"]
    lines += [f"  {name:10}{cls.__doc__}" for name, cls in COMMANDS.items()]
    return "\n".join([*lines, "", f"flags of a command: {PROGRAM} <command> --help"])


def parse(command: str, flags: Sequence[str]) -> Settings:
    """Settings of a command: preset first, then flags.

    Raises:
        UserError: an unknown flag or a value that does not fit.
    """
    cls = COMMANDS[command]
    default = {"default": _preset(cls, flags)} if "preset" in cls.model_fields else {}
    report = io.StringIO()
    try:
        with contextlib.redirect_stderr(report):
            return tyro.cli(
                cls, prog=f"{PROGRAM} {command}", args=flags, config=(tyro.conf.FlagCreatePairsOff,), **default
            )
    except SystemExit as leaving:
        if leaving.code:
            raise UserError(f"{_sentence(report.getvalue())} (see {PROGRAM} {command} --help)") from None
        raise


def _preset(cls: type[Settings], flags: Sequence[str]) -> Settings:
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_argument("--preset", nargs="?", default=settings.default_preset())
    name = scan.parse_known_args(flags)[0].preset
    return settings.of_preset(cls, name if name in settings.PRESETS else "cpu")  # tyro refuses an unknown name


def _sentence(report: str) -> str:
    """What tyro's framed report says, without title and frame, and without its last part, which points to --help."""
    rows = [line.strip(" │") for line in re.sub(r"\x1b\[[0-9;]*m", "", report).splitlines()[1:]]
    text = "\n".join("\f" if set(row) <= set("─-╰╯") else row for row in rows)
    parts = [" ".join(part.split()).rstrip(".:") for part in text.split("\f")]
    return ": ".join([part for part in parts if part][:-1])


def _set_up_logging() -> None:
    if sys.stdout.isatty():
        from rich.logging import RichHandler

        handler = RichHandler(show_level=False, show_path=False, omit_repeated_times=False, log_time_format="%H:%M:%S")
    else:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("gnn_training").setLevel(logging.INFO)  # libraries: warnings only


if __name__ == "__main__":
    processes.die_with_parent_if_supervised()
    atexit.register(gc.freeze)  # the last collection would walk for a second through all that torch has loaded
    sys.exit(main(sys.argv[1:]))
