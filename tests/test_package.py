"""Version and locks of the package, and what it can do without the extra [train]; test_readme.py installs it."""

import hashlib
import json
import re
import tomllib
from dataclasses import fields

import numpy as np
import pytest
import yaml
from checkout import python
from tiny_runs import ROOT

from gnn_training import __version__, contract
from gnn_training.data import packed
from gnn_training.network.network import ColoringNetwork
from gnn_training.settings import RunSettings, TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.logbook import Progress

LOCKS = ("requirements.lock", "requirements-oldest.lock", "requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_everything_by_hash_and_name_no_host(lock: str):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    for entry in re.split(r"\n(?=\S)", text):
        assert re.match(r"[a-z0-9-]+==\S+ (;.*)?\\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


def test_locks_hold_what_the_package_asks_for():
    base, extras = PROJECT["dependencies"], PROJECT["optional-dependencies"]
    pinned = {lock: set(re.findall(r"^([a-z0-9-]+)==", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS}
    names = {extra: {re.match(r"[\w-]+", entry)[0] for entry in entries} for extra, entries in extras.items()}
    assert names["train"] | set(base) <= pinned["requirements.lock"]
    assert names["dev"] - {PROJECT["name"]} <= pinned["requirements-dev.lock"]
    assert not pinned["requirements.lock"] & pinned["requirements-dev.lock"]


# The modules that an installation without [train] can use.
BASE = """
__init__ __main__ api console contract errors files graph hub machine processes settings
data.formats data.sources jobs.color jobs.push jobs.serve onnx_program.session search.kernels search.portfolio
search.problem
"""
WITHOUT_EXTRA = """
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split():
            raise ModuleNotFoundError(f"{name} is not in the base installation", name=name)
sys.meta_path.insert(0, Missing())
for module in sys.argv[2].split():
    importlib.import_module(f"gnn_training.{module}".removesuffix(".__init__"))
import gnn_training, numpy
gnn_training.Model().predict(numpy.array([[0, 1]]))
assert len(set(gnn_training.color(numpy.array([[0, 1], [1, 2]])).tolist())) == 2
"""


def test_base_installation_colors_and_predicts_and_its_modules_need_no_package_of_the_extra():
    names = [re.match(r"[\w-]+", entry)[0].replace("-", "_") for entry in PROJECT["optional-dependencies"]["train"]]
    python(WITHOUT_EXTRA, " ".join(names), BASE)


# Of files that users keep: what makes those of another version unreadable.
FORMATS = {
    "packed graphs": [
        packed.VERSION,
        {name: np.dtype(kind).name for name, kind in packed.PER_GRAPH.items()},
        {name: (offset, np.dtype(kind).name) for name, (offset, kind) in packed.RAGGED.items()},
    ],
    "checkpoints": [
        {name: kind.__name__ for name, kind in checkpoint.RESUMED.items()},
        sorted(checkpoint.EXPORTED),
        {name: weight.shape for name, weight in ColoringNetwork().state_dict().items()},
        sorted(field.name for field in fields(Progress)),
    ],
    "settings files": [sorted(kind.model_fields) for kind in (TrainSettings, RunSettings)],
    "exported files": [
        contract.INPUTS, contract.OPTIONAL_INPUTS, contract.OUTPUTS, contract.GRAPH_TYPES,
        contract.NUM_FEATURES, contract.MAX_COLORS,
    ],
}  # fmt: skip


def test_a_new_format_of_files_that_users_keep_comes_with_a_new_version():
    digest = hashlib.sha256(json.dumps(FORMATS, sort_keys=True).encode()).hexdigest()[:16]
    assert json.loads((ROOT / "tests/formats.json").read_text()).get(__version__) == digest, (
        f"a format of files that users keep has changed: raise __version__, unless {__version__} is not released yet, "
        f'and write "{digest}" for it into tests/formats.json'
    )


def test_the_changelog_has_this_version_and_the_citation_the_license_of_the_package():
    assert f"\n## [{__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == PROJECT["license"]
