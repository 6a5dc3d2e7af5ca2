"""The flags of a command, made of its settings: tyro reads them and shows them in --help."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import tyro
from pydantic import BaseModel, create_model

from gnn_training.errors import UserError
from gnn_training.files import read_json
from gnn_training.settings import PathOrNone, Settings, TrainSettings, from_preset

BOXES = {  # boxes of --help for the flags of a training; other flags come first
    "input": ("data", "recipe", "seed", "weights", "resume_from"),
    "output": ("run", "models", "checkpoint_every", "keep", "log_every", "logger", "tensorboard", "tensorboard_host"),
    "machine": ("device", "ranks", "gpus", "precision", "assume", "price_per_hour", "stop_pod"),
    "search": ("rounds", "steps", "searches", "minutes", "batch_size"),
    "learning": ("learning_rate", "lr_scaling", "warmup_steps", "weight_decay", "clip", "ema", "batch_states"),
    "crossover": ("self_play", "games", "batch_pairs", "replay_mib", "width", "layers"),
    "evaluation": ("evaluate_every", "validation_graphs", "validation_rounds", "patience"),
}


class CommandLine(Settings):
    """What every command has besides its settings."""

    settings: PathOrNone = None
    """JSON file of settings, such as those in `settings/` of a run folder. Flags override it."""
    dry_run: bool = False
    """Show what would be done and stop."""


def parse(kind: type[Settings], program: str, description: str, flags: Sequence[str]) -> tuple[Settings, bool]:
    """Settings of a kind, and whether only to show them. Flags override --settings and --preset. program, description:
    for the help. SystemExit if tyro has explained what is wrong with the flags, or has shown the help. UserError if a
    value does not fit, or the settings file cannot be read.
    """
    both: Any = type(kind.__name__, (CommandLine, kind), {})
    for field in both.model_fields.values():  # without the line breaks of the code
        field.description = " ".join(field.description.split()) if field.description else None
    nested, boxes = _in_boxes(both, BOXES if issubclass(kind, TrainSettings) else {})
    default = {}
    if defaults := _default(both, flags):
        parts = {title: box.model_construct(**dict(defaults)) for title, box in boxes.items()}
        default = {"default": nested.model_construct(**dict(defaults), **parts)}
    resolved = tyro.cli(
        nested, prog=program, description=description, args=flags,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes), **default,
    )  # fmt: skip
    values = dict(resolved) | {name: value for title in boxes for name, value in getattr(resolved, title)}
    return kind(**{name: values[name] for name in kind.model_fields}), values["dry_run"]


def _in_boxes(both: type[BaseModel], titles: dict[str, tuple[str, ...]]) -> tuple[Any, dict[str, Any]]:
    """The same settings, grouped into models that tyro's help shows as boxes; and these models by title."""
    types = get_type_hints(both, include_extras=True)
    fields: dict[str, Any] = {name: (types[name], field) for name, field in both.model_fields.items()}
    boxes: dict[str, Any] = {}
    for title, names in titles.items():
        chosen: dict[str, Any] = {name: fields.pop(name) for name in names if name in fields}
        boxes[title] = create_model(title, __base__=Settings, **chosen)
    others: dict[str, Any] = fields | {title: (box, ...) for title, box in boxes.items()}
    return create_model(both.__name__, __base__=Settings, **others), boxes


def _default(kind: type[Settings], flags: Sequence[str]) -> Settings | None:
    """The values of flags that are not given, by --settings, --preset and the environment, or None."""
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--preset", "--settings"):
        scan.add_argument(flag, nargs="?")
    first, has_presets = scan.parse_known_args(flags)[0], "preset" in kind.model_fields
    if not first.settings and not has_presets:
        return None
    values = read_json(Path(first.settings)) if first.settings else {}
    try:
        if not has_presets:
            return kind(**values)
        preset = first.preset or values.get("preset") or os.environ.get("GNN_TRAINING_PRESET", "cpu")
        return from_preset(kind, str(preset), **values)
    except (AttributeError, TypeError) as error:
        raise UserError(f"{first.settings}: is JSON, but no object of settings; see --dry-run") from error
    except UserError as error:
        raise UserError(f"{first.settings}: {error}" if first.settings else error) from error
