"""Settings of every command: typed, frozen, unknown names refused. Flags override presets."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
import tyro
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gnn_training.contract import CALL_ROUNDS, CROSSOVER_LAYERS, CROSSOVER_WIDTH, SHIPPED_MODEL
from gnn_training.errors import UserError

PresetName = Literal["smoke", "cpu", "single", "multi"]
RecipeName = Literal["smoke", "cpu", "full"]
Device = Literal["auto", "cpu", "cuda"]
SHIPPED = Path("shipped")  # as weights to start with: those of the file that comes with this package
SEARCHES = 51_200  # of a training whose settings name none
EVALUATIONS = 10  # of a training, beside the one before it
MAX_NUMBER = 10**9  # rounds, steps or seconds: years, and clocks and libraries can still count as far
Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
Rounds = Annotated[int, Field(gt=0, le=2**15 - 1)]  # of a search, which counts them in 16 bits on a GPU
Amount = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=MAX_NUMBER, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Workers = Annotated[int, Field(ge=0, le=1024)]  # processes or threads


def _default(text: str) -> str:
    return "" if text in ("None", "") else f"(default: {text})"


def _optional(metavar: str, *aliases: str) -> object:
    """How --help shows a flag that is None by default: without a value that nobody types."""
    return tyro.conf.arg(metavar=metavar, aliases=aliases, help_behavior_hint=_default)


PathOrNone = Annotated[Path | None, _optional("PATH")]
ModelName = Annotated[  # a Path would make hf:// to hf:/
    str, BeforeValidator(str), tyro.conf.arg(metavar="FILE", aliases=["-m"], help_behavior_hint="")
]


def _check_gpus(value: str) -> str:
    numbers = value.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"gpus ({value}) must be numbers of GPUs, each once, such as 0,1,4")
    return value


GpuNumbers = Annotated[str, AfterValidator(_check_gpus)]
GpuChoice = Annotated[str, tyro.conf.arg(metavar="GPUS")]


class Settings(BaseModel):
    """Base of all settings: immutable, no unknown names. UserError if a name is unknown or a value does not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def __init__(self, /, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError("; ".join(_sentence(dict(part)) for part in error.errors())) from None

    @model_validator(mode="after")
    def _names_are_text(self) -> Self:
        for name, value in self:
            for one in value if isinstance(value, tuple) else (value,):
                text = str(one)
                if "\0" in text or text.encode(errors="ignore").decode() != text:  # JSON could not hold it
                    raise ValueError(f"{name} ({ascii(text)}) must be UTF-8 without zero bytes: rename it")
        return self


def _sentence(error: dict[str, Any]) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] in ("missing", "too_short"):
        return f"{name} must be given"
    if error["type"] == "extra_forbidden":
        return f"there is no setting {name}"
    if "error" in error.get("ctx", {}):  # raised by a validator of this file
        return str(error["ctx"]["error"])
    return f"{name} ({error['input']!s:.200}) " + re.sub("Input |Field |String ", "", error["msg"])


class LabelSettings(Settings):
    """What `generate` and `import` have in common."""

    seed: Seed = 0
    """Random seed: another one gives another split for validation and, in `generate`, other graphs."""
    label_seconds: Amount = 10.0
    """Most seconds to look for a good coloring of each graph, which is stored with it."""
    workers: Workers = 0
    """Number of processes that work side by side; 0 starts one per core."""
    gpus: GpuChoice = "none"
    """NVIDIA GPUs for the longer searches on validation graphs: all, numbers such as 0,1, or none."""


class GenerateSettings(LabelSettings):
    recipe: RecipeName = "full"
    """Which graphs to make: 208 small ones (smoke), 1,250 of 100 to 1,000 nodes (cpu) or 15,000 of 10 to 999 (full)."""
    out: Path = Path("training_data/full")
    """Folder for the graphs with their colorings."""
    graphs: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Number of graphs to make; 0 makes as many as the recipe says."""


class ImportSettings(LabelSettings):
    sources: tyro.conf.Positional[Annotated[tuple[Path, ...], Field(min_length=1), _optional("PATH ...")]]
    """Files of graphs, folders of them, or .tar.gz archives; docs/DATA.md lists the formats."""
    out: Path = Path("training_data/imported")
    """Folder for the graphs with their colorings."""
    skip_bad: bool = False
    """Skip the files that cannot be read, and list them, instead of stopping at the first."""


class TrainSettings(Settings):
    device: Device = "auto"
    """Where to compute: auto takes the GPUs, or the CPU if there is no GPU."""
    ranks: Workers = 0
    """Number of training processes (ranks); 0 starts one per GPU or, without GPUs, one per core, at most 8."""
    gpus: Annotated[GpuNumbers | None, _optional("NUMBERS")] = None
    """Numbers of the GPUs to use, such as 0,1,4; by default all."""
    preset: PresetName = "cpu"
    """Set of defaults for all flags: smoke (a test of one minute), cpu, single (one GPU) or multi (all GPUs)."""
    data: Path = Path("training_data/full")
    """Folder of graphs to train on, as `generate` or `import` has written it."""
    run: Annotated[Path, tyro.conf.arg(aliases=["--run-folder"])] = Path("runs/cpu")
    """Run folder for the checkpoints and records of a training. A training that is already there goes on."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format; auto takes bf16 if the hardware has it, else fp16 on a GPU and fp32 on a CPU."""
    seed: Seed = 0
    """Random seed. Another one gives another training and, in `run`, other generated graphs."""
    weights: PathOrNone = SHIPPED
    """Weights to start with: of a run folder, a checkpoint or an exported file, or `shipped` for those that come with
    this program. `None` starts with random weights.
    """
    resume_from: PathOrNone = None
    """Checkpoint to go on from: step-00000200.pt in the run folder, or another path; by default the newest."""
    rounds: Rounds = 1500
    """Rounds of every search in training; in a round, a few nodes change their color."""
    steps: Count = 0
    """Number of optimizer steps of the whole training; 0 takes as many as --searches needs."""
    searches: Annotated[Positive | None, _optional("INT")] = None
    """Number of searches of the whole training if --steps is 0; a step makes two per graph. By default 51200; `run`
    makes a quarter of them from the shipped weights on generated graphs.
    """
    minutes: Amount = 0.0
    """Stop training after this many minutes; 0 sets no limit."""
    batch_size: Positive = 24
    """Number of graphs that each rank searches in a step."""
    batch_states: Positive = 4
    """Number of recorded states of searches from which each rank trains the predictions in a step."""
    self_play: Amount = 1.25
    """Minutes of self-play: searches on training graphs (games), from whose crossovers the crossover network learns; 0
    plays none.
    """
    games: Count = 0
    """Games in each of the ten iterations of self-play; 0 plays as many as --self-play allows."""
    replay_mib: Positive = 1024
    """Memory of each rank for the results of self-play, in MiB; the oldest are dropped first."""
    batch_pairs: Positive = 16
    """Number of pairs of colorings from which each rank trains the crossover network in a step."""
    width: Annotated[int, Field(ge=1, le=128)] = CROSSOVER_WIDTH  # a larger file would not be read
    """Hidden units per node of the crossover network."""
    layers: Annotated[int, Field(ge=1, le=16)] = CROSSOVER_LAYERS
    """Message-passing layers of the crossover network."""
    learning_rate: Annotated[Rate | None, _optional("FLOAT")] = None
    """Learning rate of the rule after the warm-up, for one rank; the predictions have 0.075 and the crossover network
    0.05 times it. By default 0.01, or 0.04 from random weights.
    """
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the learning rate grows with the ranks: not at all, like their square root, or in proportion."""
    warmup_steps: Count = 10
    """Number of steps in which the learning rate rises, before it falls to 0 along half a cosine."""
    weight_decay: Amount = 0.01
    """Weight decay of the optimizer, AdamW."""
    clip: Rate = 1.0
    """Largest gradient norm; larger gradients are scaled down to it."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the moving average of the weights, which is evaluated and exported."""
    evaluate_every: Count = 0
    """Steps between evaluations on the validation graphs; 0 spreads ten over the training."""
    patience: Count = 0
    """Stop after this many evaluations in a row without a better score; 0 never stops early."""
    validation_graphs: Count = 0
    """Most validation graphs to use; 0 uses all."""
    validation_rounds: Rounds = 3000
    """Rounds of every search in an evaluation."""
    checkpoint_every: Positive = 20
    """Steps between checkpoints, the most that a crash can lose."""
    keep: Count = 2
    """Number of checkpoints to keep, the newest; 0 keeps all."""
    log_every: Positive = 10
    """Steps between log lines."""
    logger: Annotated[Literal["wandb"] | None, _optional("{wandb}")] = None
    """Where to log besides TensorBoard: wandb (Weights & Biases)."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if 0 < self.steps <= self.warmup_steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be below steps ({self.steps})")
        return self

    @property
    def peak_rate(self) -> float:
        """The learning rate after the warm-up."""
        return self.learning_rate or (0.01 if self.weights else 0.04)

    def num_steps(self, graphs_per_step: float) -> int:
        """The number of optimizer steps of the whole training. graphs_per_step: on all ranks, the mean."""
        return self.steps or max(self.warmup_steps + 1, round((self.searches or SEARCHES) / (2 * graphs_per_step)))


class RunSettings(TrainSettings):
    data: PathOrNone = None  # type: ignore[assignment]
    """Your graphs, in any format that `import` reads; by default those in training_data, or else generated ones."""
    recipe: RecipeName = "cpu"
    """Which graphs to generate if there are no others; `generate --help` lists them."""
    models: Path = Path("models")
    """Folder for the exported model, coloring_gnn.onnx, and for the archive of all results."""
    tensorboard: Annotated[int, Field(ge=0, lt=65536)] = 0
    """Port on which TensorBoard shows the curves while the job runs; 0 does not start it."""
    tensorboard_host: str = "127.0.0.1"
    """Address on which TensorBoard listens; 0.0.0.0 lets other machines in, which a container needs."""
    price_per_hour: Amount = 0.0
    """Price of this machine per hour, so that the results tell what the job has cost."""
    stop_pod: bool = False
    """Stop this RunPod pod as soon as the results are packed and verified; needs RUNPOD_API_KEY."""

    def train_settings(self, graphs: Path, are_generated: bool) -> TrainSettings:
        """What `train` is told when the GPUs are selected. graphs: packed."""
        values = self.model_dump(include=set(TrainSettings.model_fields)) | {"data": graphs, "gpus": None}
        if not self.searches and are_generated and self.weights == SHIPPED:
            values["searches"] = SEARCHES // 4
        return TrainSettings(**values)


class CheckSettings(RunSettings):
    assume: Annotated[Annotated[str, Field(pattern=r"^(h100|h200|b200)x[1-8]$")] | None, _optional("GPUS")] = None
    """Only estimate the job on another machine, such as h200x8: h100, h200 or b200, and how many of them."""


class PackSettings(Settings):
    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder of the training, the --run-folder of `train`."""
    models: Path = Path("models")
    """Folder of the exported model, where the archive is written, too."""
    price_per_hour: Amount = 0.0
    """Price of this machine per hour, so that the archive tells what the job has cost."""
    checkpoint: bool = False
    """Pack the newest checkpoint, too, from which another machine can go on."""


class PushSettings(Settings):
    repo: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="OWNER/NAME")]]
    """Repository on the Hugging Face Hub; it is created if it does not exist."""
    archive: Path = Path("models/trained_model.tar.gz")
    """Archive to push, as `run` and `pack` write it."""
    license: str = "mit"
    """License to name in the model card, such as mit or apache-2.0."""
    private: bool = False
    """If the repository is created, let only you see it."""


class ExportSettings(Settings):
    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder of the training, the --run-folder of `train`, or a checkpoint file."""
    models: Path = Path("models")
    """Folder for the model, coloring_gnn.onnx, with its golden vectors (inputs and their outputs) and checksums."""
    rounds: Annotated[
        Positive, Field(validation_alias=pydantic.AliasChoices("rounds", "steps")), tyro.conf.arg(aliases=["--steps"])
    ] = CALL_ROUNDS
    """Most rounds of the search in a call of the model that names none; small graphs take fewer. --steps is the old
    name of this flag.
    """
    verify_only: bool = False
    """Write nothing; check the model in --models against its checksums and golden vectors."""


class SearchSettings(Settings):
    """What `evaluate` and `color` have in common."""

    model: ModelName = str(SHIPPED_MODEL)
    """Exported model, or hf://owner/name[@revision] on the Hugging Face Hub; by default the one that ships."""
    threads: Workers = 0
    """Number of threads; 0 takes every core."""
    gpus: GpuChoice = "none"
    """NVIDIA GPUs that search beside the cores, for one graph: all, numbers such as 0,1, or none. No GPU has run this
    yet.
    """


class EvaluateSettings(SearchSettings):
    gpus: GpuChoice = "none"
    """NVIDIA GPUs that search for --seconds beside the cores, one for each graph: all, numbers such as 0,1, or none."""
    graphs: tyro.conf.Positional[Annotated[Path | None, _optional("[PATH]")]] = None
    """File of a graph, folder of files, or a folder that `generate` or `import` wrote, for its validation graphs."""
    suite: Annotated[Literal["q-coloring", "dimacs"] | None, _optional("{q-coloring,dimacs}")] = None
    """Public benchmark: q-coloring makes its own graphs; dimacs knows the best results for the .col files you name."""
    best_known: PathOrNone = None
    """CSV file with the columns name and best_known: the fewest colors known for each graph."""
    seconds: Amount = 0.0
    """Also let `color` search each graph for this many seconds; 0 leaves it out."""
    calls: Count = 0
    """Most graphs that get a call of the model and, with --seconds, a search by `color`; 0 takes all."""
    tabucol: bool = False
    """Also run TabuCol and the search with trained, untrained and shipped weights, each for --seconds (0.2 s if 0) on
    one thread, and TabuCol for the time of the call.
    """
    limit: Count = 0
    """Most graphs to take, spread evenly over the list; 0 takes all."""
    exclude_selection: Annotated[Count | None, _optional("INT")] = None
    """Leave out the validation graphs that chose the weights: give the number that --validation-graphs had. If fewer
    than 20 others remain, all are scored, and the report says so.
    """
    report: Path = Path("report.json")
    """JSON file for the results; a page for a browser, with the suffix .html, is written beside it."""

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.suite in (None, "dimacs") and self.graphs is None:
            raise ValueError("graphs must be given: a file or a folder. Suite q-coloring needs none")
        if self.suite not in (None, "dimacs") and self.graphs is not None:
            raise ValueError(f"suite {self.suite} makes its own graphs: leave out {self.graphs}")
        if self.report.suffix == ".html" or not self.report.name:
            raise ValueError(f"report ({self.report}) is for the numbers: name a .json file; a page stands beside it")
        if self.gpus != "none" and not self.seconds:
            raise ValueError("GPUs search for --seconds: give them, or leave out --gpus")
        return self


class ColorSettings(SearchSettings):
    graphs: tyro.conf.Positional[Annotated[tuple[Path, ...], Field(min_length=1), _optional("PATH ...")]]
    """File of a graph (DIMACS .col, edge list, GraphML, JSON, ...), or several, or folders, colored side by side."""
    out: Annotated[Path | None, _optional("PATH", "-o")] = None
    """File for the coloring, written at every better one: .csv (lines node,color), .json (node to color), else DIMACS.
    Of several graphs: folder for .sol files, which must be given. Of one graph, by default a .sol file beside it.
    """
    k: Count = 0
    """Stop at a coloring with at most this many colors, and fail if none is found; 0 looks for as few as possible."""
    precolored: PathOrNone = None
    """File of colors that nodes must have, as -o writes it, or with lines node,color. Colors count from 0, in .sol
    files from 1.
    """
    allowed: PathOrNone = None
    """CSV or JSON file of the colors that some nodes may have: lines node,color,color,... All others may have the
    colors 0 to k - 1 or, without --k, up to the largest in the file.
    """
    start: PathOrNone = None
    """Coloring of this graph to improve, a file as -o writes it; -o may name the same file."""
    equitable: bool = False
    """Among colorings with equally few colors, look for one whose classes have almost the same size."""
    picture: PathOrNone = None
    """PNG or SVG file for a picture of the graph, of up to 400 nodes and 10,000 edges; needs the extra [picture]."""
    seconds: Amount = 10.0
    """Most seconds to spend on each graph."""
    seed: Seed = 0
    """Random seed: another one may find another coloring."""

    @model_validator(mode="after")
    def _picture_has_a_format(self) -> Self:
        if self.picture and self.picture.suffix not in (".png", ".svg"):
            raise ValueError(f"picture ({self.picture}) must end in .png or .svg")
        return self


class ServeSettings(Settings):
    models: Annotated[Path, tyro.conf.arg(help_behavior_hint="")] = SHIPPED_MODEL.parent
    """Folder of coloring_gnn_web.onnx, such as models; by default that of the model that ships."""
    port: Annotated[int, Field(ge=0, lt=65536)] = 8000
    """Port of the page on this machine, 127.0.0.1; 0 takes a free one."""
    runtime: PathOrNone = None
    """Folder `dist` of onnxruntime-web; by default the one that npm has installed beside the page."""


PRESETS: dict[str, dict[str, Any]] = {  # what differs from the defaults of RunSettings
    "smoke": {  # a test of the whole job, a minute on two cores; the colors are not good
        "run": Path("runs/smoke"), "recipe": "smoke", "steps": 40, "warmup_steps": 5, "rounds": 100, "batch_size": 8,
        "evaluate_every": 20, "validation_graphs": 16, "validation_rounds": 100, "checkpoint_every": 20, "log_every": 5,
        "weights": None, "games": 4,
    },
    "cpu": {"validation_graphs": 120},
    "single": {
        "run": Path("runs/single"), "recipe": "full", "searches": 409_600, "batch_size": 256, "checkpoint_every": 200,
        "log_every": 20, "self_play": 3.0, "batch_pairs": 64, "validation_graphs": 1000,
    },
}  # fmt: skip
PRESETS["multi"] = PRESETS["single"] | {"run": Path("runs/multi"), "searches": 1_638_400, "lr_scaling": "sqrt"}
Kind = TypeVar("Kind", bound=Settings)


def from_preset(kind: type[Kind], name: str, /, **changes: Any) -> Kind:
    """The settings of a command with the values of a preset, as far as the command has them, and changes."""
    # A name that is no preset is refused by the settings.
    values = PRESETS.get(name, {}) | {"preset": name}
    return kind(**{field: value for field, value in values.items() if field in kind.model_fields} | changes)
