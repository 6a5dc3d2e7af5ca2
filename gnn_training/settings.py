"""Settings of every job: typed, frozen, unknown keys refused. Presets are functions; flags override them one by one."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.errors import UserError

PresetName = Literal["smoke", "cpu", "single", "multi"]
RecipeName = Literal["smoke", "cpu", "full"]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """Base of all settings: immutable and strict about names.

    Raises:
        UserError: a name that is not known or a value that does not fit, wherever the values come from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, **values):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError("; ".join(map(_sentence, error.errors()))) from None

    def flags(self) -> list[str]:
        """The arguments of a command line that the door reads as these settings."""
        preset = getattr(self, "preset", None)
        default = of_preset(type(self), preset) if preset else self.model_construct()
        result = ["--preset", preset] if preset else []
        for name, field in type(self).model_fields.items():
            value, flag = getattr(self, name), name.replace("_", "-")
            if tyro.conf.Positional in field.metadata:
                result += map(str, value if isinstance(value, tuple) else [value])
            elif name == "preset" or value == getattr(default, name):
                continue
            elif isinstance(value, bool):
                result.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                result += [f"--{flag}", str(value)]
        return result


def _sentence(error: dict) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] in ("missing", "too_short"):
        return f"{name} must be given"
    if error["type"] == "extra_forbidden":
        return f"there is no setting {name}"
    if "error" in error.get("ctx", {}):  # one of our own validators
        return str(error["ctx"]["error"])
    return f"{name} ({error['input']}) " + error["msg"].replace("Input ", "").replace("Field ", "")


class GenerateSettings(Settings):
    """Generate labelled training graphs by recipe and seed; the same command continues what was interrupted."""

    recipe: RecipeName = "full"
    """Families, shares and sizes: smoke and cpu are small, full is what eight GPUs train on."""
    out: Path = Path("training_data/full")
    """Folder for the packed graphs."""
    graphs: Annotated[int, Field(ge=0)] = 0
    """Number of graphs; 0 takes the recipe's own."""
    seed: int = 0
    label_seconds: Seconds = 1.0
    """Search time per graph, at most."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes; 0 takes every core."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class ImportSettings(Settings):
    """Read JSON training files, DIMACS, edge lists or GraphML and pack them with labels."""

    sources: tyro.conf.Positional[Annotated[tuple[Path, ...], Field(min_length=1)]]
    """Files and folders."""
    out: Path = Path("training_data/imported")
    """Folder for the packed graphs."""
    seed: int = 0
    """Seed of the training and validation split."""
    label_seconds: Seconds = 1.0
    """Search time per graph, at most."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes; 0 takes every core."""
    skip_bad: bool = False
    """Leave unreadable files out and list them, instead of stopping at the first."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class TrainSettings(Settings):
    """Train the network on packed graphs; the same folder again means resume."""

    preset: PresetName = "cpu"
    """Defaults of all the flags below."""
    data: Path = Path("training_data")
    """Folder of packed graphs."""
    run: Path = Path("runs/cpu")
    """Folder for everything that this training writes."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where GPU or CPU has it, else fp16 with loss scaling on a GPU and fp32 on a CPU."""
    compile: bool = True
    """Compile the refinement rounds; without it the same numbers, slower, and errors that show the line."""
    width: Positive = 16
    """Size of the state per node and color; the hidden layer of the update has twice as many."""
    weights: Path | None = None
    """Start with the weights of this run folder or checkpoint; left out, with random ones."""
    rounds: Annotated[int, Field(ge=4)] = 16
    """Refinement rounds with gradient; each step draws within 3 of it."""
    damping: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of the gradient that passes from round to round; with all of it training diverges."""
    steps: Positive = 3000
    """Optimizer steps of the whole schedule."""
    minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Stop training after this long, decided by all ranks together; 0 is no limit."""
    batch_size: Positive = 8_000
    """Node-color pairs per rank and micro-batch: what memory and time grow with."""
    accumulate: Positive = 1
    """Micro-batches per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1.5e-3
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the learning rate grows with the number of ranks."""
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    clip: Annotated[float, Field(gt=0)] = 0.5
    """Largest gradient norm."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.995
    """Decay of the averaged weights, which are the ones evaluated and exported."""
    evaluate_every: Positive = 500
    """Steps between evaluations on the validation graphs."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Evaluations without a better score before stopping early; 0 never stops."""
    validation_graphs: Annotated[int, Field(ge=0)] = 0
    """Use at most so many validation graphs; 0 uses all."""
    validation_rounds: Positive = 128
    """Refinement rounds in an evaluation."""  # as many as the file makes: few would not tell good steps from others
    checkpoint_every: Positive = 100
    """Steps between checkpoints: what a crash can lose."""
    log_every: Positive = 50
    dry_run: bool = False
    """Print the resolved settings and stop."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be below steps ({self.steps})")
        return self


class RunSettings(TrainSettings):
    """The whole job: data, check, train, export, verify, evaluate. What is already done and still fits is skipped."""

    data: Path | None = None
    """Your graphs: packed, JSON, DIMACS or GraphML, file or folder. Left out, graphs are generated."""
    recipe: RecipeName = "cpu"
    """Which graphs to generate when no data is given."""
    models: Path = Path("models")
    """Folder that receives coloring_gnn.onnx and what belongs to it."""
    oldest_runtime: bool = True
    """Run the file in ONNX Runtime 1.16.3 too; installing that needs a network once."""
    processes: Annotated[int, Field(ge=0)] = 0
    """Ranks on this machine; 0 takes one per GPU, or one per core without GPUs."""
    gpus: str | None = None
    """Numbers of the GPUs to train on, such as 0,1,4; left out, all of them."""
    tensorboard: Annotated[int, Field(ge=0, lt=65536)] = 0
    """Port on which the curves can be watched while the job runs; 0 shows none."""
    price_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What the machine costs, for the cost in the manifest of the packed model."""
    stop_pod: bool = False
    """On RunPod: stop the pod, and so its bill, once the packed model is verified. Needs RUNPOD_API_KEY."""

    @field_validator("gpus")
    @classmethod
    def _numbers(cls, value: str | None) -> str | None:
        numbers = [] if value is None else value.split(",")
        if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
            raise ValueError(f"gpus ({value}) must be numbers of GPUs, each once, such as 0,1,4")
        return value


class PreflightSettings(Settings):
    """Add a tensor up over all ranks, within a time limit: do the GPUs of this machine reach each other?"""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    mebibytes: Positive = 64
    """Size of the tensor."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class PackSettings(Settings):
    """Pack the exported model and what tells where it comes from into trained_model.tar.gz."""

    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder of the training."""
    models: Path = Path("models")
    """Folder of the exported model; receives the archive."""
    price_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What the machine costs, for the cost in the manifest."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class ExportSettings(Settings):
    """Write the trained network as one verified ONNX file."""

    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder, or a checkpoint file."""
    models: Path = Path("models")
    """Folder that receives coloring_gnn.onnx, golden vectors and SHA256SUMS."""
    steps: Positive = 128
    """Refinement rounds of a plain three-input call."""
    oldest_runtime: bool = True
    """Run the file in ONNX Runtime 1.16.3 too; installing that needs a network once."""
    verify_only: bool = False
    """Write nothing; prove again that the file in `models` is whole and gives its golden answers."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class EvaluateSettings(Settings):
    """Count colors on a folder of graphs, next to DSATUR, RLF and the best known."""

    graphs: tyro.conf.Positional[Path]
    """Folder of .col files or of packed graphs, or one file."""
    model: Annotated[Path, tyro.conf.arg(aliases=["-m"])] = SHIPPED_MODEL
    """An exported file, such as models/coloring_gnn.onnx after a training; left out, the one that comes with this."""
    best_known: Path | None = None
    """CSV with columns name and best_known."""
    seconds: Seconds = 0.0
    """Time per graph for the second, searching column; 0 leaves it out."""
    polish: bool = False
    """Let TabuCol have most of the time after the first call; without it, calls, sets and iterated greedy share it."""
    rlf: bool = True
    """Compare with RLF too, which is slow on graphs of a thousand nodes."""
    tabucol: bool = False
    """Compare with TabuCol too, alone and for `seconds`."""
    limit: Annotated[int, Field(ge=0)] = 0
    """Take at most so many graphs (of packed data: validation graphs); 0 takes all."""
    report: Path = Path("report.json")
    """Where the numbers go."""
    plot: Path | None = None
    """PNG file for colors above the best known against time and, with further calls, against refinement rounds."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of ONNX Runtime and of the polish; 0 takes every core."""
    dry_run: bool = False
    """Print the resolved settings and stop."""

    @model_validator(mode="after")
    def _search_has_time(self) -> Self:
        for name in ("polish", "tabucol", "plot"):
            if getattr(self, name) and not self.seconds:
                raise ValueError(f"{name} needs time: set seconds above 0, such as 10")
        return self


class ColorSettings(Settings):
    """Color one graph of yours, properly, within a time budget."""

    graph: tyro.conf.Positional[Path]
    """A DIMACS .col file, edge list, GraphML or JSON file."""
    model: Annotated[Path, tyro.conf.arg(aliases=["-m"])] = SHIPPED_MODEL
    """An exported file, such as models/coloring_gnn.onnx after a training; left out, the one that comes with this."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Solution file (s col K, l v color); left out, it stands beside the graph as .sol."""
    seconds: Seconds = 10.0
    """Time to spend; the first call of the network may take up to a minute more."""
    polish: bool = True
    """Let TabuCol have most of the time after the first call; without it, calls, sets and iterated greedy share it."""
    seed: int = 0
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of ONNX Runtime and of the polish; 0 takes every core."""
    dry_run: bool = False
    """Print the resolved settings and stop."""


class CheckSettings(RunSettings):
    """Tell whether the job would start here, and what it would cost, before anything is paid for."""


def smoke() -> RunSettings:
    """`./run.sh --preset smoke`: the whole job in under a minute on two cores; proves the plumbing, not the colors."""
    return RunSettings(
        preset="smoke",
        run=Path("runs/smoke"),
        recipe="smoke",
        compile=False,
        steps=40,
        warmup_steps=5,
        rounds=8,
        batch_size=2_000,
        evaluate_every=20,
        validation_graphs=16,
        validation_rounds=16,
        checkpoint_every=20,
        log_every=5,
    )


def cpu() -> RunSettings:
    """`./run.sh`: the embedded default, two cores and no GPU."""
    return RunSettings(preset="cpu", minutes=8, evaluate_every=1000, validation_graphs=120)


def single() -> RunSettings:
    """`./run.sh --preset single`: one GPU, the full recipe."""
    return RunSettings(
        preset="single", run=Path("runs/single"), recipe="full", steps=20_000, warmup_steps=500, batch_size=1_000_000,
        evaluate_every=1000, checkpoint_every=500,
    )  # fmt: skip


def multi() -> RunSettings:
    """`run_multigpu.sh`: every GPU of the machine, the full recipe."""
    return single().model_copy(update={"preset": "multi", "run": Path("runs/multi"), "lr_scaling": "sqrt"})


def of_preset(cls: type[Settings], name: str) -> Settings:
    """The settings of a job that has presets, `cls`, as the preset `name` sets them."""
    return cls(**{field: value for field, value in PRESETS[name]() if field in cls.model_fields and value is not None})


PRESETS = {preset.__name__: preset for preset in (smoke, cpu, single, multi)}


def default_preset() -> str:
    """The preset when none is named: run.sh says in GNN_TRAINING_PRESET whether this is a GPU machine.

    Raises:
        UserError: it holds no preset.
    """
    name = os.environ.get("GNN_TRAINING_PRESET", "cpu")
    if name not in PRESETS:
        raise UserError(f"GNN_TRAINING_PRESET ({name}) must be one of {', '.join(PRESETS)}")
    return name
