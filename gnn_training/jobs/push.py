"""Push a packed model to the Hugging Face Hub, with a model card."""

import json
import logging
from pathlib import Path

from gnn_training import files
from gnn_training.console import cell
from gnn_training.contract import MAX_COLORS, SUMS_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.files import Contents, read_archive
from gnn_training.hub import FILES, errors_in_a_sentence, parse
from gnn_training.report.scores import METHODS
from gnn_training.settings import PushSettings

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
        contents["README.md"] = card(repo, settings.license, contents).encode()
    return contents


def card(repo: str, license: str, contents: Contents) -> str:
    """Write the model card of a packed model, with the scores of its report.json."""
    import jinja2

    report, manifest = (json.loads(contents[file]) for file in ("report.json", "manifest.json"))
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"cell": cell, "name": METHODS.get}
    return environment.from_string(CARD.read_text(encoding="utf-8")).render(
        repo=repo, license=license, report=report, manifest=manifest, scores=SCORES, max_colors=MAX_COLORS,
        weights=WEIGHTS_FILE,
    )  # fmt: skip
