"""Settings of every command: typed, frozen, unknown names refused. Presets are functions; flags override them."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

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
LARGEST = 10**9  # rounds, steps or seconds: years, and clocks and libraries can still count as far
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
Rounds = Annotated[int, Field(gt=0, le=2**15 - 1)]  # of a search, which counts them in 16 bits on a GPU
Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False)]
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
    """Seed of all random numbers: another one splits the graphs otherwise into training and validation graphs, and lets
    `generate` draw other graphs.
    """
    label_seconds: Amount = 10.0
    """Most seconds to search for a good coloring of a graph, its label."""
    workers: Workers = 0
    """Number of processes that work side by side; 0 takes one per core."""


class GenerateSettings(LabelSettings):
    recipe: RecipeName = "full"
    """Which graphs: smoke makes 208 small ones, cpu 1,250 of 100 to 1,000 nodes, full 15,000 of all sizes."""
    out: Path = Path("training_data/full")
    """Folder to write the packed graphs to."""
    graphs: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Number of graphs; 0 takes the number of the recipe."""


class ImportSettings(LabelSettings):
    sources: tyro.conf.Positional[Annotated[tuple[Path, ...], Field(min_length=1), _optional("PATH ...")]]
    """Files of graphs, folders of them, or .tar.gz archives; docs/DATA.md has the formats."""
    out: Path = Path("training_data/imported")
    """Folder to write the packed graphs to."""
    skip_bad: bool = False
    """List unreadable files and go on, instead of stopping at the first."""


class TrainSettings(Settings):
    device: Device = "auto"
    """Where to compute; auto takes the GPUs if there are any."""
    ranks: Workers = 0
    """Training processes (ranks) on this machine; 0 takes one per GPU, or one per core if there are no GPUs."""
    gpus: Annotated[GpuNumbers | None, _optional("NUMBERS")] = None
    """Numbers of the GPUs to take, such as 0,1,4; by default all."""
    preset: PresetName = "cpu"
    """Defaults of the other flags: smoke (a test of one minute), cpu, single (one GPU) or multi (all GPUs)."""
    data: Path = Path("training_data")
    """Folder of packed graphs, which `generate` and `import` write."""
    run: Annotated[Path, tyro.conf.arg(aliases=["--run-folder"])] = Path("runs/cpu")
    """Folder for all that the training writes, the run folder. A training that it holds resumes."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Number format; auto takes bf16 if the hardware has it, else fp16 with loss scaling on a GPU and fp32 on a CPU."""
    seed: Seed = 0
    """Seed of all random numbers: another one gives another training and, in `run`, other generated graphs."""
    weights: PathOrNone = SHIPPED
    """Weights to start with: `shipped` for those of the file that comes with this package, or a run folder, a
    checkpoint or an exported file. `--weights None` starts with random weights.
    """
    resume_from: PathOrNone = None
    """Checkpoint to resume from, by default the newest of the run folder: a name such as step-00000200.pt there (what
    is later is moved aside), or the path of a checkpoint of another run folder.
    """
    rounds: Rounds = 1500
    """Rounds of a search in training; a round moves a few nodes."""
    steps: Count = 0
    """Number of optimizer steps of the whole training; 0 makes as many as --searches needs."""
    searches: Annotated[Positive | None, _optional("INT")] = None
    """Searches of the whole training, two for every graph of a step, if --steps is 0. By default 51,200; in `run` a
    quarter of them for generated graphs with the shipped weights, which have little left to learn there.
    """
    minutes: Amount = 0.0
    """Stop training after this many minutes; 0 sets no limit."""
    batch_size: Positive = 24
    """Graphs that a rank searches in a step, each of them twice."""
    batch_states: Positive = 4
    """States of long searches that a rank takes in a step, from which the network learns to predict."""
    self_play: Amount = 1.25
    """Minutes of self-play: searches on all cores from which the crossover network learns, the one that combines two
    colorings; 0 leaves it as it is.
    """
    games: Count = 0
    """Searches in each of the ten rounds of self-play; 0 takes as many as its minutes allow."""
    replay_mib: Positive = 1024
    """Memory of a rank for the results of self-play, in MiB; the oldest are forgotten first."""
    batch_pairs: Positive = 16
    """Pairs of colorings that a rank takes in a step, from which the crossover network learns."""
    width: Annotated[int, Field(ge=1, le=1024)] = CROSSOVER_WIDTH
    """Hidden units per node of the crossover network."""
    layers: Annotated[int, Field(ge=1, le=16)] = CROSSOVER_LAYERS
    """Layers of message passing of the crossover network."""
    learning_rate: Annotated[Rate | None, _optional("FLOAT")] = None
    """Learning rate after the warm-up, on one rank. By default 0.01, or 0.04 with random weights at the start."""
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the learning rate grows with the number of ranks."""
    warmup_steps: Count = 10
    """Steps in which the learning rate grows to its full value; then it falls to 0, as half a cosine."""
    weight_decay: Amount = 0.01
    """Weight decay of the optimizer, AdamW."""
    clip: Rate = 1.0
    """Largest gradient norm; larger gradients are scaled down to it."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the moving average of the weights; the averaged weights are evaluated and exported."""
    evaluate_every: Count = 0
    """Steps between evaluations on the validation graphs; 0 spreads ten over the training."""
    patience: Count = 0
    """Stop after this many evaluations in a row without a better score; 0 never stops early."""
    validation_graphs: Count = 0
    """Number of validation graphs to use, at most; 0 uses all."""
    validation_rounds: Rounds = 3000
    """Rounds of a search in an evaluation."""
    checkpoint_every: Positive = 20
    """Steps between checkpoints. A crash loses at most this many."""
    keep: Count = 2
    """Number of checkpoints to keep, the newest; 0 keeps all."""
    log_every: Positive = 10
    """Steps between log lines."""
    logger: Annotated[Literal["wandb"] | None, _optional("{wandb}")] = None
    """Where to log beside TensorBoard: wandb (Weights & Biases)."""

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
        """Return the number of optimizer steps of the whole training. graphs_per_step: on all ranks, the mean."""
        return self.steps or max(self.warmup_steps + 1, round((self.searches or SEARCHES) / (2 * graphs_per_step)))


class RunSettings(TrainSettings):
    data: PathOrNone = None  # type: ignore[assignment]
    """Your graphs, a file, folder or archive in any format that `import` reads. By default the graphs in training_data,
    and if there are none, generated ones.
    """
    recipe: RecipeName = "cpu"
    """Which graphs to generate if no data is given."""
    models: Path = Path("models")
    """Folder to write coloring_gnn.onnx to, with its golden vectors, checksums and archive."""
    tensorboard: Annotated[int, Field(ge=0, lt=65536)] = 0
    """Port on which TensorBoard shows the curves while the job runs; 0 starts none."""
    tensorboard_host: str = "127.0.0.1"
    """Address on which TensorBoard listens; 0.0.0.0 lets other machines in, which a container needs."""
    price_per_hour: Amount = 0.0
    """Price of the machine, for the cost in the manifest of the packed model."""
    stop_pod: bool = False
    """On RunPod: stop this pod when the packed model is verified. Needs RUNPOD_API_KEY."""

    def of_training(self, graphs: Path, are_generated: bool) -> TrainSettings:
        """What `train` is told when the GPUs are selected. graphs: packed."""
        values = self.model_dump(include=set(TrainSettings.model_fields)) | {"data": graphs, "gpus": None}
        if not self.searches and are_generated and self.weights == SHIPPED:
            values["searches"] = SEARCHES // 4
        return TrainSettings(**values)


class CheckSettings(RunSettings):
    assume: Annotated[Annotated[str, Field(pattern=r"^(h100|h200|b200)x[1-8]$")] | None, _optional("GPUS")] = None
    """Only estimate the job on a machine that is not here, such as h200x8: h100, h200 or b200, and how many of them."""


class PackSettings(Settings):
    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder of the training, the --run of `train`."""
    models: Path = Path("models")
    """Folder of the exported model; the archive is written there."""
    price_per_hour: Amount = 0.0
    """Price of the machine, for the cost in the manifest."""
    checkpoint: bool = False
    """Pack the newest checkpoint, too, from which another machine can resume."""


class PushSettings(Settings):
    repo: tyro.conf.Positional[str]
    """Model repository on the Hugging Face Hub, as owner/name; it is created if there is none."""
    archive: Path = Path("models/trained_model.tar.gz")
    """The packed model, as `run` and `pack` write it."""
    license: str = "mit"
    """License in the model card, as the Hub abbreviates it, such as mit or apache-2.0."""
    private: bool = False
    """If the repository is created: only you can see it."""


class ExportSettings(Settings):
    run: tyro.conf.Positional[Path] = Path("runs/cpu")
    """Run folder of the training, the --run of `train`, or a checkpoint file."""
    models: Path = Path("models")
    """Folder to write coloring_gnn.onnx to, with golden vectors and SHA256SUMS."""
    steps: Positive = CALL_ROUNDS
    """Most rounds of the search in a call that names no `steps`; small graphs take fewer."""
    verify_only: bool = False
    """Write nothing; check the file in --models against its checksums and golden vectors."""


class SearchSettings(Settings):
    """What `evaluate` and `color` have in common."""

    model: ModelName = str(SHIPPED_MODEL)
    """An exported file, or hf://owner/name[@revision] on the Hugging Face Hub; by default the file that ships."""
    threads: Workers = 0
    """Number of threads; 0 takes every core."""
    gpus: str = "none"
    """NVIDIA GPUs that search beside the cores: all, numbers such as 0,1, or none. `color` takes all of them for one
    graph, `evaluate` one for each. They pay in searches of minutes.
    """


class EvaluateSettings(SearchSettings):
    graphs: tyro.conf.Positional[Annotated[Path | None, _optional("[PATH]")]] = None
    """Folder of graph files or of packed graphs, or one file. Suite q-coloring takes none."""
    suite: Annotated[Literal["q-coloring", "dimacs"] | None, _optional("{q-coloring,dimacs}")] = None
    """Public benchmark: q-coloring makes its graphs; dimacs knows the best numbers of colors of your .col files."""
    best_known: PathOrNone = None
    """CSV file with the columns name and best_known: the fewest colors known for each graph."""
    seconds: Amount = 0.0
    """Seconds that `color` gets for each graph, beside one call of the file; 0 leaves it out."""
    calls: Count = 0
    """Most graphs that the file itself colors, by one call each, which takes longer than DSATUR; 0 takes all."""
    tabucol: bool = False
    """Also let TabuCol, a classic tabu search, and the trained, untrained and shipped rules search each graph, on one
    thread each, for --seconds or 0.2 s; and TabuCol once more for as long as the call of the file took.
    """
    limit: Count = 0
    """Most graphs to take, from everywhere in the list; of packed graphs, validation graphs. 0 takes all."""
    exclude_selection: Count = 0
    """Number of validation graphs that have chosen the weights, the --validation-graphs of the training. They are left
    out if at least 20 others remain; 0 leaves none out. For packed graphs.
    """
    report: Path = Path("report.json")
    """JSON file to write the numbers to. A page for a browser, with the suffix .html, is written beside it."""

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
    """A file of a graph, such as DIMACS .col, an edge list, GraphML or JSON; or several files, or folders of them,
    which are colored side by side, each on one thread.
    """
    out: Annotated[Path | None, _optional("PATH", "-o")] = None
    """Solution file, written at every better coloring: .csv (lines node,color), .json (node to color), else DIMACS
    (lines "s col K" and "l v color"). Of several graphs or a folder: folder for .sol files. By default a .sol file
    beside the graph."""
    k: Count = 0
    """Stop at a coloring with at most this many colors, or fail; 0 looks for as few as possible."""
    precolored: PathOrNone = None
    """CSV file of colors that nodes must have: lines node,color. Colors count from 0."""
    allowed: PathOrNone = None
    """CSV file of nodes that may have some colors only: lines node,color,color,... All other nodes may have the colors
    0 to k - 1, without --k those up to the largest one in the file.
    """
    start: PathOrNone = None
    """Solution file of this graph, as -o writes it, to go on from; -o may name the same file."""
    equitable: bool = False
    """Of colorings with the same number of colors, look for one whose classes have almost the same size."""
    picture: PathOrNone = None
    """PNG or SVG file to draw the colored graph to, of 400 nodes at most. Needs the extra [picture]."""
    seconds: Amount = 10.0
    """Most seconds to spend on each graph."""
    seed: Seed = 0
    """Seed of the search: another one may find another coloring, of the same quality."""

    @model_validator(mode="after")
    def _picture_has_a_format(self) -> Self:
        if self.picture and self.picture.suffix not in (".png", ".svg"):
            raise ValueError(f"picture ({self.picture}) must end in .png or .svg")
        return self


class ServeSettings(Settings):
    models: Annotated[Path, tyro.conf.arg(help_behavior_hint="")] = SHIPPED_MODEL.parent
    """Folder of coloring_gnn_web.onnx, such as models; by default that of the file that ships."""
    port: Annotated[int, Field(ge=0, lt=65536)] = 8000
    """Port on this machine, 127.0.0.1; 0 takes a free one."""
    runtime: PathOrNone = None
    """Folder `dist` of onnxruntime-web; by default the one that npm has installed beside the page."""


def smoke() -> RunSettings:
    """Return the settings of a test of the whole job: a minute on two cores. The colors are not good."""
    return RunSettings(
        preset="smoke", run=Path("runs/smoke"), recipe="smoke", steps=40, warmup_steps=5, rounds=100,
        batch_size=8, evaluate_every=20, validation_graphs=16, validation_rounds=100, checkpoint_every=20,
        log_every=5, weights=None, games=4,
    )  # fmt: skip


def cpu() -> RunSettings:
    """Return the settings for a machine without a GPU."""
    return RunSettings(preset="cpu", validation_graphs=120)


def single() -> RunSettings:
    """Return the settings for one GPU and the full recipe."""
    return RunSettings(
        preset="single", run=Path("runs/single"), recipe="full", searches=409_600, warmup_steps=10, batch_size=256,
        checkpoint_every=200, log_every=20, self_play=3.0, batch_pairs=64,
    )  # fmt: skip


def multi() -> RunSettings:
    """Return the settings for every GPU of the machine and the full recipe."""
    changes = {"preset": "multi", "run": Path("runs/multi"), "searches": 1_638_400, "lr_scaling": "sqrt"}
    return single().model_copy(update=changes)


PRESETS = {preset.__name__: preset for preset in (smoke, cpu, single, multi)}
Kind = TypeVar("Kind", bound=Settings)


def of_preset(kind: type[Kind], name: str, /, **changes: Any) -> Kind:
    """Return the settings of a command with the values of a preset, as far as the command has them, and changes."""
    # What differs from the defaults. A name that is no preset is refused by the settings.
    preset = PRESETS[name]().model_dump(exclude_unset=True) if name in PRESETS else {"preset": name}
    return kind(**{field: value for field, value in preset.items() if field in kind.model_fields} | changes)
