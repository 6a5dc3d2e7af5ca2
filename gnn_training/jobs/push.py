"""Push a packed model to the Hugging Face Hub, with a model card."""

import json
import logging
from pathlib import Path
from typing import Any

from gnn_training import files
from gnn_training.archive import Contents, read_archive
from gnn_training.console import cell
from gnn_training.contract import MAX_COLORS, SUMS_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.hub import FILES, errors_in_a_sentence, parse
from gnn_training.settings import PushSettings
from gnn_training.solve.report import METHODS

log = logging.getLogger(__name__)
SCORES = {"mean_gap": "mean number of colors above the best known", "mean_colors": "mean number of colors",
          "at_best_known": "graphs with the best known number of colors"}  # fmt: skip
CARD = Path(__file__).with_name("card.md")


def push(settings: PushSettings) -> str:
    """Upload the files of the archive and a model card in one commit. Returns hf://owner/name@commit. Raises UserError:
    the archive cannot be used, or the Hub cannot be reached or refuses.
    """
    repo = settings.repo
    name = f"hf://{repo}"
    contents = _contents(settings, name)
    with errors_in_a_sentence(name):
        from huggingface_hub import CommitOperationAdd, HfApi

        api, operations = HfApi(), [CommitOperationAdd(file, content) for file, content in contents.items()]
        api.create_repo(repo, private=settings.private or None, exist_ok=True)
        commit = api.create_commit(repo, operations, commit_message="Push with coloring-gnn")
    pinned = f"{name}@{commit.oid}"
    log.info("pushed %d files: use them with --model %s, or exactly these with --model %s", len(contents), name, pinned)
    return pinned


def dry_run(settings: PushSettings) -> None:
    """Check the archive and print the model card. Raises UserError as `push`, without a connection."""
    contents = _contents(settings, f"hf://{settings.repo}")
    print(contents["README.md"].decode())
    log.info("would push %d files to hf://%s: %s", len(contents), settings.repo, ", ".join(contents))


def _contents(settings: PushSettings, name: str) -> Contents:
    repo, revision = parse(name)
    if revision is not None:
        raise UserError(f"repo ({settings.repo}) must be owner/name: a push goes to the main branch")
    with files.damaged(settings.archive, "pack again"):
        packed = read_archive(settings.archive)
        contents = {file: packed[file] for file in FILES}
        contents[SUMS_FILE] = files.checksums(contents).encode()
    with errors_in_a_sentence(name), files.damaged(settings.archive, "pack again"):
        contents["README.md"] = card(repo, settings.license, contents).encode()
    return contents


def card(repo: str, license: str, contents: Contents) -> str:
    """Write the model card of a packed model, scores from its report.json in the head (model-index) and as a table."""
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    report, manifest = (json.loads(contents[file]) for file in ("report.json", "manifest.json"))
    summary: dict[str, Any] = report["summary"]
    results = [
        EvalResult(
            task_type="graph-ml", task_name="graph coloring", dataset_type="graphs",
            dataset_name=f"{scores['graphs']} graphs", metric_type=metric,
            metric_name=f"{title}, {METHODS[method]}", metric_value=scores[metric],
        )
        for method, scores in summary["methods"].items() if method in ("one_call", "search")
        for metric, title in SCORES.items() if scores[metric] is not None
    ]  # fmt: skip
    data = ModelCardData(
        license=license, library_name="coloring-gnn", pipeline_tag="graph-ml", model_name=repo.split("/")[1],
        tags=["graph-coloring", "combinatorial-optimization", "graph-neural-network", "onnx"], metrics=list(SCORES),
        eval_results=results,
    )  # fmt: skip
    rows = [["method", *SCORES.values()], ["---"] * (1 + len(SCORES))]
    rows += [[METHODS[method], *(cell(scores[metric]) for metric in SCORES)]
             for method, scores in summary["methods"].items()]  # fmt: skip
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    values = {key: manifest["training"][key] for key in ("step", "ranks", "device", "seconds")}
    return ModelCard.from_template(
        data, str(CARD), title=repo.split("/")[1], repo=repo, version=manifest["version"], graphs=summary["graphs"],
        table=table, max_colors=MAX_COLORS, weights=WEIGHTS_FILE, verdict=report.get("verdict", ""), **values,
    ).content  # fmt: skip
