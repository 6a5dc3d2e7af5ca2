"""Where the graphs of the whole job come from."""

from dataclasses import dataclass
from pathlib import Path

from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.settings import RunSettings

HOME = Path("training_data")  # looked into when no data is named; generated graphs go below it


@dataclass(frozen=True)
class Source:
    """graphs: folder that holds the packed graphs or will; imported: files to fill it from; generated: or a recipe."""

    graphs: Path
    imported: Path | None = None
    generated: bool = False


def locate(settings: RunSettings) -> Source:
    """The data that was named, else what others left in training_data, else a place for generated graphs."""
    named = settings.data or _found()
    if named is None:
        return Source(HOME / f"{settings.recipe}-{settings.seed}", generated=True)
    if (named / MANIFEST_FILE).exists():
        return Source(named)
    return Source(settings.run / "data", imported=named)


def _found() -> Path | None:
    if (HOME / MANIFEST_FILE).exists():
        return HOME
    return HOME / "graphs" if any((HOME / "graphs").glob("*.json")) else None
