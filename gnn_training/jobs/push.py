"""Push a packed model to the Hugging Face Hub, with a model card."""

import json
import logging
from pathlib import Path

from gnn_training import files, run_files
from gnn_training.console import cell
from gnn_training.contract import MAX_COLORS, SUMS_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.hub import FILES, errors_in_a_sentence, parse
from gnn_training.machine import require_package
from gnn_training.report.scores import METHODS
from gnn_training.settings import PushSettings

log = logging.getLogger(__name__)
SCORES = {"mean_gap": "mean number of colors above the best known", "mean_colors": "mean number of colors",
          "at_best_known": "graphs with the best known number of colors"}  # fmt: skip
CARD = Path(__file__).with_name("card.md")


def push(settings: PushSettings) -> str:
    """Upload the files of the archive and a model card in one commit; return hf://owner/name@commit. UserError if the
    archive cannot be used, or the Hub cannot be reached or refuses.
    """
    name, contents = f"hf://{settings.repo}", _contents(settings)
    with errors_in_a_sentence(name):
        from huggingface_hub import CommitOperationAdd, HfApi

        api, operations = HfApi(), [CommitOperationAdd(file, content) for file, content in contents.items()]
        api.create_repo(settings.repo, private=settings.private or None, exist_ok=True)
        commit = api.create_commit(settings.repo, operations, commit_message="Push with coloring-gnn")
    pinned = f"{name}@{commit.oid}"
    log.info("pushed %d files: use them with --model %s, or exactly these with --model %s", len(contents), name, pinned)
    return pinned


def dry_run(settings: PushSettings) -> None:
    """Check the archive and print the model card. UserError as `push`, without a connection."""
    contents = _contents(settings)
    print(contents["README.md"].decode())
    log.info("would push %d files to hf://%s: %s", len(contents), settings.repo, ", ".join(contents))


def _contents(settings: PushSettings) -> files.Contents:
    """The files of the archive that are uploaded, and a model card with the scores of its report.json."""
    if parse(f"hf://{settings.repo}")[1] is not None:
        raise UserError(f"repo ({settings.repo}) must be owner/name: a push goes to the main branch")
    require_package("jinja2", "push", "'.[hub]' in a clone")
    packed = files.read_archive(settings.archive)
    with files.damaged(settings.archive, "pack again"):
        import jinja2

        contents = {file: packed[file] for file in FILES}
        report, manifest = (json.loads(contents[file]) for file in (run_files.REPORT, run_files.ARCHIVE_MANIFEST))
        report.pop("picture", None)  # the edges of a graph of the user
        contents[run_files.REPORT] = files.as_json(report)
        environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
        environment.filters |= {"cell": cell, "name": METHODS.get}
        card = environment.from_string(CARD.read_text(encoding="utf-8")).render(
            repo=settings.repo, license=settings.license, report=report, manifest=manifest, scores=SCORES,
            max_colors=MAX_COLORS, weights=WEIGHTS_FILE,
        )  # fmt: skip
        contents |= {SUMS_FILE: files.checksums(contents).encode(), "README.md": card.encode()}
    return contents
