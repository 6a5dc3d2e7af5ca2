"""Where the graphs of the whole job come from."""

from dataclasses import dataclass
from pathlib import Path

from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.errors import UserError
from gnn_training.settings import RunSettings

HOME = Path("training_data")  # looked into when no data is named; generated graphs go below it


@dataclass(frozen=True)
class Source:
    """graphs: folder that holds the packed graphs or will; imported: files to fill it from; generated: or a recipe."""

    graphs: Path
    imported: Path | None = None
    generated: bool = False

    @property
    def is_filled_by_us(self) -> bool:
        """Whether the job writes to `graphs`; packed graphs of others are only read."""
        return self.generated or self.imported is not None


def locate(settings: RunSettings) -> Source:
    """The data that was named, else what others left in training_data, else a place for generated graphs.

    Raises:
        UserError: they left several archives there.
    """
    named = settings.data or _found()
    if named is None:
        return Source(HOME / f"{settings.recipe}-{settings.seed}", generated=True)
    if (named / MANIFEST_FILE).exists():
        return Source(named)
    return Source(settings.run / "data", imported=named)


def written(settings: RunSettings) -> list[Path]:
    """Folders that the whole job writes to, each once."""
    source = locate(settings)
    filled = [source.graphs] if source.is_filled_by_us else []
    return list(dict.fromkeys([*filled, settings.run, settings.models]))


def _found() -> Path | None:
    if (HOME / MANIFEST_FILE).exists():
        return HOME
    if any((HOME / "graphs").glob("*.json")):
        return HOME / "graphs"
    archives = sorted(HOME.glob("*.tar.gz"))
    if len(archives) > 1:
        raise UserError(f"{HOME} holds {archives[0].name}, {archives[1].name} and perhaps more: name one with --data")
    return archives[0] if archives else None
