"""What runs first on a new kind of GPU: everything, unattended, in at most 45 minutes.

    scripts/first_gpu.sh --data training_data/full  # in an environment: python -m benchmarks.first_gpu

It stops at the first failure with one sentence. The folder --out has first_gpu.md and first_gpu.json with what was
measured until then, and a log of every step. docs/GPU.md explains the steps.
"""

import inspect
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from gnn_training import machine, processes
from gnn_training.__main__ import PROGRAM
from gnn_training.console import duration, set_up_logging
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import MachineError, TrainingError, UserError
from gnn_training.files import make_folder, write_text
from gnn_training.jobs.run import SETTINGS, Step
from gnn_training.settings import GenerateSettings, RecipeName, RunSettings, TrainSettings, of_preset

log = logging.getLogger("gnn_training")
MINUTES = 45
TIMED_OUT = 124  # as timeout(1) of coreutils
MAX_DIFFERENCE = 0.1  # between the mean gaps on GPU and CPU
EXPECTED_SAME = 0.98  # share of the searches of the first step that end on the GPU as on the CPU
MEASURED = 12  # million rounds per second of an H200 in a training on recipe cpu, 256 graphs in a step
SIZES = (32, 128, 256, 1024)
PREFIX = f"{PROGRAM}: "  # of the sentence with which a command fails
Results = dict[str, Any]  # numbers and text of a step; a list of dictionaries becomes a table


@dataclass(frozen=True)
class Options:
    """What to measure, and where to leave it."""

    out: Path = Path("runs/first_gpu")
    """New folder for the page, the numbers and the logs."""
    data: Path | None = None
    """Folder of packed graphs; None generates those of the recipe."""
    recipe: RecipeName = "cpu"
    """Graphs to generate without --data. full takes hours on CPUs: generate it before the GPU costs money."""
    minutes: float = 8.0
    """Longest training."""
    quick: bool = False
    """Tiny sizes, nothing after the training, and no verdict on numbers: for pretended GPUs, which compute nothing."""


class Failed(UserError):
    """What stopped the trial, with the exit code of the process that failed."""

    def __init__(self, sentence: str, exit_code: int):
        super().__init__(sentence)
        self.exit_code = exit_code


class Trial:
    """What the steps share: options, results so far, and how to start a process."""

    def __init__(self, options: Options):
        self.options, self.out, self.data = options, options.out, options.data or options.out / "graphs"
        self.deadline, self.results = time.monotonic() + 60 * MINUTES, dict[str, Results]()

    def settings(self, kind: Any, **changes: Any) -> Any:
        """Settings of a command."""
        values: Results = {"data": self.data, "device": "cuda"}
        if self.options.quick:
            return of_preset(kind, "smoke", **values | {"rounds": 20, "validation_rounds": 20} | changes)
        return of_preset(kind, "single", **values | changes)

    def run_settings(self) -> RunSettings:
        """Settings of the whole job."""
        folders = {"run": self.out / "run", "models": self.out / "models"}
        return self.settings(RunSettings, minutes=self.options.minutes, **folders)

    def command(self, name: str, command: str, settings: Any, **options: Any) -> str:
        """Do a command of coloring-gnn; see `child`."""
        return self.child(name, Step(name, command, settings).arguments(self.out), **options)

    def measure(self, name: str, part: str, settings: TrainSettings) -> Results:
        """What a part of gpu_measures finds."""
        file = Step(name, part, settings).arguments(self.out)[-1].removeprefix("--settings=")
        return json.loads(self.child(name, ["-m", "benchmarks.gpu_measures", part, file]).splitlines()[-1])

    def child(
        self, name: str, arguments: Sequence[str], stop_when: Callable[[], bool] = lambda: False, code: int = 0
    ) -> str:
        """Run Python and return what it said, which goes to NAME.log. stop_when: tells when to send SIGTERM. Raises
        Failed: it ended with another exit code, or not in time.
        """
        file, is_signalled = self.out / f"{name}.log", False
        with open(file, "w") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT,
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )  # fmt: skip
            try:
                while process.poll() is None:
                    if time.monotonic() > self.deadline:
                        raise Failed(f"{MINUTES} minutes are over: {file} tells what took so long", TIMED_OUT)
                    if not is_signalled and stop_when():
                        process.terminate()
                        is_signalled = True
                    time.sleep(0.1)
            finally:
                process.kill()  # without waiting: a driver that hangs does not let go of it
        text, ended = file.read_text(errors="replace").strip(), process.returncode
        if ended < 0:
            raise Failed(f"killed by signal {-ended}, perhaps out of memory: see {file}", 128 - ended)
        if ended != code:
            lines = text.splitlines() or ["nothing was said"]
            sentence = [*lines[-1:], *(line for line in lines if line.startswith(PREFIX))][-1].removeprefix(PREFIX)
            raise Failed(f"{sentence} (exit code {ended}, see {file})", ended or 1)
        return text


def look_at_machine(trial: Trial) -> Results:
    """The bandwidth is that of copying a GiB within the GPU, read and written."""
    return trial.measure("machine", "describe", trial.settings(TrainSettings))


def find_graphs(trial: Trial) -> Results:
    """What is trained on below."""
    if not trial.options.data:
        trial.command("graphs", "generate", GenerateSettings(recipe=trial.options.recipe, out=trial.data))
    data = PackedGraphs.open(trial.data)
    return {"folder": str(trial.data), **{split: len(data.indices(split)) for split in ("train", "validation")}}


def check(trial: Trial) -> Results:
    """Whether the job would start."""
    lines = trial.command("check", "check", trial.run_settings()).splitlines()
    return {"check": "\n".join(line for line in lines if line.startswith("|"))}


def compare(trial: Trial) -> Results:
    """Mean loss terms of the same steps on CPU and GPU. Rounding may send a search another way, and after a
    step the weights with it, so fewer searches end the same from step to step. In the first step nearly all should.
    The predictions of a graph alone use bf16.
    """
    quick = trial.options.quick
    size: Results = {"steps": 3} if quick else {"steps": 20, "rounds": 500, "batch_size": 24}
    settings = trial.settings(TrainSettings, warmup_steps=1, **size)
    results = trial.results["compare"] = trial.measure("compare", "compare", settings)
    cpu, gpu, _ = (row["gap"] for row in results["rows"])
    if not quick and not abs(gpu - cpu) <= MAX_DIFFERENCE:
        raise MachineError(f"the mean gap is {gpu:.2f} on the GPU and {cpu:.2f} on the CPU: report it")
    return results


def measure_rounds(trial: Trial) -> Results:
    """Rounds per second of one GPU and of all cores of this machine, on graphs of five sizes."""
    results = trial.measure("rounds", "rounds", trial.settings(TrainSettings))
    for row in results["rows"]:
        ratio = row["gpu_rounds_per_second"] / row["cores_rounds_per_second"]
        row["cores_that_a_gpu_replaces"] = results["cores"] * ratio
    return results


def measure_steps(trial: Trial) -> Results:
    """Whole training steps, after an epoch in which every graph was prepared. Few graphs do not fill a large batch."""
    sizes = [8] if trial.options.quick else SIZES
    steps = 3 if trial.options.quick else 20
    settings = (trial.settings(TrainSettings, batch_size=size, steps=steps, warmup_steps=1) for size in sizes)
    return {"rows": [trial.measure(f"steps-{each.batch_size}", "steps", each) for each in settings]}


def measure_ranks(trial: Trial) -> Results:
    """The same steps, on the same graphs, on 1, 2, 4 and 8 GPUs, as far as there are so many. `waiting` is the share of
    the time in which ranks wait for the slowest of them.
    """
    changes: Results = {"steps": 3, "warmup_steps": 1} if trial.options.quick else {}
    return trial.measure("ranks", "ranks", trial.settings(TrainSettings, **changes))


def train(trial: Trial) -> Results:
    """`run`, stopped by SIGTERM in its first steps, then continued. The gaps are those on the validation graphs in
    training; `run/report.html` has those of the exported file on the CPU.
    """
    run, settings, quick = trial.out / "run", trial.run_settings(), trial.options.quick

    def has_steps() -> bool:  # an evaluation comes before the first step
        file = run / "metrics.jsonl"
        return file.exists() and '"kind": "train"' in file.read_text()

    def is_trained() -> bool:  # what follows takes minutes, and no GPU
        return quick and "export ..." in (trial.out / "run-continued.log").read_text()

    trial.command("run-stopped", "run", settings, stop_when=has_steps, code=processes.STOPPED)
    stopped = json.loads((run / "status.json").read_text())
    trial.command("run-continued", "run", settings, stop_when=is_trained, code=processes.STOPPED if quick else 0)
    status, took = (json.loads((run / f"{name}.json").read_text()) for name in ("status", "steps"))
    if (stopped["status"], status["status"]) != ("stopped", "done") or status["step"] <= stopped["step"]:
        raise TrainingError(f"{run} was not stopped and continued: see {trial.out}/run-*.log")
    return {
        "stopped_at_step": stopped["step"],
        "steps": status["step"],
        "seconds": status["seconds"],
        "seconds_of_steps": status["step_seconds"],
        "gap_before": status["first_gap"],
        "gap_after": status["best"],
        "gap_of_dsatur": status["dsatur_gap"],
        "rows": [{"step of the job": name, "seconds": state["seconds"]} for name, state in took.items()],
    }


STEPS = {
    "machine": look_at_machine, "graphs": find_graphs, "check": check, "compare": compare, "rounds": measure_rounds,
    "steps": measure_steps, "ranks": measure_ranks, "train": train,
}  # fmt: skip


def advice(failure: str | None, quick: bool) -> list[str]:
    """What to do next."""
    if failure:
        return ["Repair what stopped it, then start again with another folder."]
    if quick:
        return ["Start it without `--quick` on a GPU."]
    return [
        f"Where less than {EXPECTED_SAME} of the searches in the first step of fp32 end as on the CPU, find out why.",
        f"An H200 has made {MEASURED} million rounds a second in a training, with 256 graphs in a step: see `steps`.",
        "Train with the `--batch-size` that has the most searches per second in `steps`.",
        "Rent the cheapest two GPUs with NVLink for ten minutes before eight.",
    ]


def shown(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with a column per key."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    lines = [[title.replace("_", " ") for title in titles], ["---"] * len(titles)]
    lines += [[shown(row.get(title)) for title in titles] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(name: str, results: Results) -> str:
    """The results of a step: a table of single values, then lists and texts of several lines."""
    long = {key: value for key, value in results.items() if isinstance(value, list) or "\n" in str(value)}
    single = [{"": key.replace("_", " "), "found": results[key]} for key in results if key not in long]
    parts = [value if isinstance(value, str) else table(value) for value in (*[single] * bool(single), *long.values())]
    return "\n\n".join([f"## {name}", str(inspect.getdoc(STEPS[name])), *parts])


def write(trial: Trial, seconds: Mapping[str, float], failure: str | None) -> None:
    """Write the page and the numbers."""
    how = f"**It stopped: {failure}**" if failure else f"All {len(STEPS)} steps are done."
    tiny = "**Tiny sizes, and no verdict on numbers: on pretended GPUs, which compute nothing, they mean nothing.**"
    times = table([{"step": name, "time": duration(each)} for name, each in seconds.items()])
    parts = ["# First GPU", f"{datetime.now():%Y-%m-%d %H:%M}. {how}", *[tiny] * trial.options.quick]
    parts += [times] * bool(seconds)
    parts += ["## What to do next", "\n".join(f"- {line}" for line in advice(failure, trial.options.quick))]
    parts += [section(name, results) for name, results in trial.results.items()]
    numbers = {"failure": failure, "quick": trial.options.quick, "seconds": seconds, "found": trial.results}
    write_text(trial.out / "first_gpu.json", json.dumps(numbers, indent=1) + "\n")
    write_text(trial.out / "first_gpu.md", "\n\n".join(parts) + "\n")
    log.info("results: %s", trial.out / "first_gpu.md")


def main(options: Options) -> None:
    """Do all steps. Raises UserError: the folder cannot be used. Failed: a step has failed."""
    if (options.out / "first_gpu.json").exists():
        raise UserError(f"{options.out} has the results of a trial: name another folder with --out")
    if warning := machine.require_storage([options.out]):
        log.warning("%s", warning)
    make_folder(options.out / SETTINGS)
    trial, seconds, failure = Trial(options), dict[str, float](), "it was interrupted"
    try:
        for number, (name, step) in enumerate(STEPS.items(), 1):
            title, started = f"step {number}/{len(STEPS)} {name}", time.monotonic()
            log.info("%s ...", title)
            try:
                trial.results[name] = step(trial)
            except UserError as error:
                failure = f"{title}: {error}"
                raise Failed(failure, error.exit_code) from error
            seconds[name] = time.monotonic() - started
            log.info("%s: done after %s", title, duration(seconds[name]))
        failure = ""
    finally:
        write(trial, seconds, failure or None)


if __name__ == "__main__":
    set_up_logging()
    try:
        with processes.interruptible():
            main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.stderr.write(f"first_gpu: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt as interrupt:
        sys.exit(128 + interrupt.args[0])
