"""The one exception that is meant for a person to read."""


class UserError(Exception):
    """Bad input, a bad setting or a machine that cannot do what was asked.

    The message is one sentence that names the file, line or setting and the way out. The door prints it without a
    traceback and leaves with exit code 2. Mistakes of ours are `assert`s and other exceptions, never this.
    """
