"""Models on the Hugging Face Hub: names such as hf://owner/name, and files that are fetched and checked."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_training import files, run_files
from gnn_training.contract import MODEL_FILE, MODEL_FILES, SUMS_FILE
from gnn_training.errors import UserError
from gnn_training.machine import require_package

# The files that SUMS_FILE names.
FILES = (*MODEL_FILES, run_files.CONFIG, run_files.REPORT, run_files.ARCHIVE_MANIFEST)
NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@(.+))?")


def model_file(name: Path | str) -> Path:
    """The path of a model file. For hf://owner/name or hf://owner/name@revision, the files are fetched first, or taken
    from the cache without a connection, and their checksums are checked. UserError if there is no such model, it cannot
    be fetched, or a file differs from its checksum.
    """
    if not str(name).startswith("hf:"):
        if NAME.fullmatch(f"hf://{name}") and not Path(name).suffix and not os.path.exists(name):
            raise UserError(f"{name}: no such file; if you mean a model on the Hub, name it hf://{name}")
        return Path(name)
    repo, revision = parse(str(name))
    with errors_in_a_sentence(str(name)):
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=[SUMS_FILE, *FILES]))
    names = [MODEL_FILE, *(file for file in FILES if (folder / file).exists())]
    hint = f"delete {folder.parents[1]}, or name a model or revision that `coloring-gnn push` uploaded"
    files.read_checked(folder, names, hint)
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
    kinds: tuple[type[Exception], ...] = ImportError, OSError, ValueError  # such as of a proxy, a name, a model card
    try:
        from huggingface_hub import errors

        kinds += (errors.HTTPError,)
        yield
    except kinds as error:
        cause = " ".join(str(error).split())
        ways = "correct the name, log in with `hf auth login` or set HF_TOKEN, connect, or make room in HF_HOME"
        raise UserError(f"{name}: the Hub and its cache do not serve it ({cause}): {ways}") from error
