"""Models on the Hugging Face Hub: names such as hf://owner/name, and files that are fetched and checked."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_training import files
from gnn_training.contract import GOLDEN_FILE, MODEL_FILE, SUMS_FILE, WEB_FILE, WEIGHTS_FILE
from gnn_training.errors import UserError
from gnn_training.machine import require_package

# SUMS_FILE names them.
FILES = (MODEL_FILE, WEB_FILE, GOLDEN_FILE, WEIGHTS_FILE, "config.json", "report.json", "manifest.json")
NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?")
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def model_file(name: Path | str) -> Path:
    """Return the path of a model file. Of hf://owner/name or hf://owner/name@revision, the files are fetched first and
    their checksums checked; without a connection, those of the cache are taken. Raises UserError if there is no such
    model, it cannot be fetched, or a file differs from its checksum.
    """
    if not str(name).startswith("hf:"):
        if NAME.fullmatch(f"hf://{name}") and not Path(name).suffix and not os.path.exists(name):
            raise UserError(f"{name}: no such file; if you mean a model on the Hub, name it hf://{name}")
        return Path(name)
    repo, revision = parse(str(name))
    with errors_in_a_sentence(str(name)):
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=[SUMS_FILE, *FILES]))
    found = {file: (folder / file).read_bytes() for file in (SUMS_FILE, *FILES) if (folder / file).exists()}
    sums = found.get(SUMS_FILE, b"")
    if f"  {MODEL_FILE}\n".encode() not in sums:
        raise UserError(f"{name} has no {SUMS_FILE} of a {MODEL_FILE}: name a model that `coloring-gnn push` uploaded")
    if wrong := files.changed(sums, found, ()):
        cache = folder.parents[1]
        raise UserError(f"{name}: {wrong} differs from its checksum: delete {cache}, or name another revision")
    return folder / MODEL_FILE


def parse(name: str) -> tuple[str, str | None]:
    """Split hf://owner/name@revision into owner/name and revision; UserError if it is not such a name."""
    match = NAME.fullmatch(name)
    if match is None:
        raise UserError(f"{name} is no name of a model on the Hub: it is hf://owner/name or hf://owner/name@revision")
    return match[1], match[2]


@contextmanager
def errors_in_a_sentence(name: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into UserError. Tokens are left to that library and appear in no message."""
    require_package("huggingface_hub", name, "'.[hub]' in a clone")
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        missing = "there is no such model or revision, or it is private or gated"
        raise UserError(f"{name}: {missing}: correct the name, ask for access on its page, or {LOG_IN}") from error
    except (errors.HfHubHTTPError, ValueError) as error:  # ValueError: of a name or a model card
        refusal = " ".join(str(error).split())
        raise UserError(f"{name}: the Hub refuses ({refusal}): correct that, {LOG_IN}, or try again later") from error
    except (errors.HTTPError, OSError) as error:
        why = f"not in the cache, and the Hub or the cache cannot be used ({files.reason(error)})"
        raise UserError(f"{name}: {why}: connect, unset HF_HUB_OFFLINE, or make room in HF_HOME") from error
