"""What README and docs say of files, flags, presets, commands, messages and formats is what is there."""

import itertools
import os
import re
import shlex
from pathlib import Path

import pytest

import gnn_training.__main__ as door
from gnn_training import __version__, contract
from gnn_training.data import packed
from gnn_training.data.families import FAMILIES
from gnn_training.data.recipes import RECIPES
from gnn_training.data.sources import PARSERS
from gnn_training.settings import PRESETS

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md", "CHANGELOG.md", "docs/DATA.md", "docs/ONNX.md", "docs/PODS.md", "docs/RUST.md", "docs/SPEED.md",
    "models/README.md", "training_data/README.md",
)  # fmt: skip
HOSTS = ("github.com", "keepachangelog.com", "semver.org", "rest.runpod.io", "docs.runpod.io")
NEEDING = ("import", "evaluate", "color")  # a page may name these commands without what they need


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next one of two or three #."""
    return re.search(rf"^##+ {title}\n(.*?)(?=^###? |\Z)", text(page), re.MULTILINE | re.DOTALL)[1]


def table(page: str, title: str, first: str = "") -> list[list[str]]:
    """Cells of the rows of a section's table, without its head, which begins with the cell `first`."""
    lines = iter(section(page, title).splitlines())
    below = itertools.dropwhile(lambda line: not line.startswith(f"| {first}"), lines)
    rows = itertools.takewhile(lambda line: line.startswith("|"), below)
    return [[cell.strip().replace("`", "") for cell in row[1:-1].split("|")] for row in rows][2:]


def shown(value: object) -> str:
    """A setting as the README writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return {None: "none"}.get(value, f"{value:.10g}" if isinstance(value, float) else str(value))


def test_tree_names_the_files_of_the_package_and_what_each_is_for():
    tree = re.search(r"^gnn_training/\n(.*?)^```", section("README.md", "The map"), re.MULTILINE | re.DOTALL)[1]
    named, folders = set(), {0: "gnn_training"}
    for indent, name in re.findall(r"^( +)(\S+) +\S", tree, re.MULTILINE):
        path = f"{folders[len(indent) - 4]}/{name}"
        if name.endswith("/"):
            folders[len(indent)] = path.rstrip("/")
        else:
            named.add(path)
    there = [path for path in (ROOT / "gnn_training").rglob("*.py") if path.stat().st_size]
    assert named == {str(path.relative_to(ROOT)) for path in there}


def test_flags_of_the_readme_are_those_of_run_with_the_defaults_of_its_preset():
    said = {flag: default for flag, default, _ in table("README.md", "Flags")}
    assert said == {f"--{name.replace('_', '-')}": shown(value) for name, value in PRESETS["cpu"]()}


def test_presets_of_the_readme_are_those_of_the_functions():
    presets = [dict(preset()) for preset in PRESETS.values()]
    differing = [name for name in presets[0] if name != "preset" and len({str(p[name]) for p in presets}) > 1]
    expected = [[f"--{name.replace('_', '-')}", *(shown(p[name]) for p in presets)] for name in differing]
    assert sorted(table("README.md", "Commands", "|")) == sorted(expected)


def test_commands_of_the_readme_are_those_of_the_door():
    assert [command for command, _ in table("README.md", "Commands", "command")] == list(door.COMMANDS)


def commands() -> list[str]:
    """Every command of ours in the code of the pages."""
    fenced = [re.findall(r"^```sh\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL) for page in PAGES]
    lines = "\n".join(itertools.chain(*fenced)).replace("\\\n", "").splitlines()
    inline = itertools.chain(*(re.findall(r"`([^`\n]+)`", text(page)) for page in PAGES))
    ours = re.compile(r"\./\w+\.sh|scripts/\w+\.sh|python -m gnn_training \w")
    return sorted({line.partition("#")[0].strip() for line in [*lines, *inline] if ours.match(line)})


@pytest.mark.parametrize("command", commands())
def test_command_of_the_pages_is_understood(command: str):
    program, *words = shlex.split(command.removeprefix("python -m gnn_training "))
    if "/" in program:
        assert os.access(ROOT / program, os.X_OK)
        words = words[words[:1] == ["2"] :]  # run_multigpu.sh 2: ranks
        program = "run" if "run" in program else ""
    if program and words != ["--help"] and not (program in NEEDING and not words):
        door.parse(program, words)
    assert program in ("", *door.COMMANDS)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    links = re.findall(r"\]\(([^)]+)\)", text(page)) + re.findall(r'src="([^"]+)"', text(page))
    for link in links:
        if host := re.match(r"https?://([^/]+)", link):
            assert host[1] in HOSTS, link
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], link


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_no_other_host_and_no_path_of_a_machine(page: str):
    hosts = re.findall(r"https?://([\w.-]+)", text(page))
    assert set(hosts) <= set(HOSTS)
    assert not re.findall(r"(?<![\w./>*)<])[/~][a-z][\w-]*/\S+", text(page).replace("/dev/shm", ""))
    assert "../.." not in text(page)


@pytest.mark.parametrize(
    ("page", "title"), [("README.md", "Troubleshooting"), ("docs/PODS.md", "When something goes wrong")]
)
def test_messages_that_the_pages_explain_are_said_somewhere(page: str, title: str):
    sources = [*(ROOT / "gnn_training").rglob("*.py"), *(ROOT / "scripts").glob("*.sh"), *ROOT.glob("*.sh")]
    code = re.sub(r'"\s*\\?\n\s*f?"', "", "\n".join(path.read_text() for path in sources))
    said = [message for row in table(page, title) for message in row[0].split(", ")]
    assert [message for message in said if message not in code] == []


def test_formats_of_the_pages_are_those_of_the_readers():
    for page, title, column in (("README.md", "Train on your own graphs", 1), ("docs/DATA.md", "Import", 0)):
        suffixes = [row[column] for row in table(page, title)]
        assert sorted(re.findall(r"\.\w+", " ".join(suffixes))) == sorted(PARSERS)


def test_packed_form_is_described_tensor_by_tensor():
    values = [name for row in table("docs/DATA.md", "Packed format", "tensor") for name in row[0].split(", ")]
    assert sorted(values) == sorted(packed.PER_GRAPH)
    tail = section("docs/DATA.md", "Packed format").partition("Values of all graphs in a row")[2]
    rows = [row for row in re.findall(r"^\| `(\w+)` \| (\w+) \| `(\w+)` \|", tail, re.MULTILINE)]
    assert {name: (offset, dtype) for name, dtype, offset in rows} == {
        name: (offset, dtype.__name__) for name, (offset, dtype) in packed.RAGGED.items()
    }


def test_families_and_recipes_are_described():
    rows = table("docs/DATA.md", "Families", "family")
    said = {name: row[1] for row in rows for name in row[0].split(", ")}
    assert said == {name: family.graph_type for name, family in FAMILIES.items()}
    sizes = {row[0]: int(row[1].replace(",", "")) for row in table("docs/DATA.md", "Families", "recipe")}
    assert sizes == {name: sum(recipe.counts.values()) for name, recipe in RECIPES.items()}


@pytest.mark.parametrize(("page", "title"), [("README.md", "Use it"), ("docs/ONNX.md", "Tensors")])
def test_tensors_of_the_pages_are_those_of_the_contract(page: str, title: str):
    ways = {"in": contract.INPUTS, "optional": contract.OPTIONAL_INPUTS, "out": contract.OUTPUTS}
    said = [(way, name) for way, name, *_ in table(page, title, "|")]
    assert said == [(way, name) for way, names in ways.items() for name in names]


def test_graph_types_are_in_the_order_of_the_contract():
    assert [row[1] for row in table("docs/ONNX.md", "Families")] == list(contract.GRAPH_TYPES)


def test_changelog_has_this_version():
    assert f"## [{__version__}]" in text("CHANGELOG.md")
