"""The exceptions meant for people: one sentence, no traceback, and an exit code that names the kind of cause."""


def printable(text: str) -> str:
    """Return the text on one line. Line breaks, escape sequences and other characters that no terminal should get, as
    in the names of files, are escaped.
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


class UserError(Exception):
    """Something outside this program must change. The message says what is wrong, where, and the way out."""

    exit_code = 2

    def __str__(self) -> str:
        """The message, as `printable`."""
        return printable(super().__str__())


class MachineError(UserError):
    """The machine cannot do this job: GPUs, driver, the links between them, a port."""

    exit_code = 3


class StorageError(UserError):
    """Results cannot be written: no volume, no permission, no room."""

    exit_code = 4


class TrainingError(UserError):
    """Training ended before its time: a rank died or was killed."""

    exit_code = 5


class NoColoringError(UserError):
    """No coloring meets the requirements, or none was found in the time."""

    exit_code = 6
