"""The error model, in three rules.

1. What the user can mend (a parameter, a file, a port) is a `UserError`: one clear line that names the file, the
   field and the value and says what to do. The command line prints that line and exits with code 2.
2. What goes wrong inside one rollout (a tool, a verifier, a time-out) is data: a `status` other than `ok` on the node
   and a null reward. It never stops a run and never counts as a wrong answer.
3. Everything else is a defect and surfaces as the exception it is.
"""


class UserError(Exception):
    """Something the user can mend; the message is complete, on one line, and is shown without a traceback."""


def install_command(extra: str) -> str:
    """The one command that brings the optional packages of an extra of pyproject.toml."""
    return f"uv pip install -e '.[{extra}]' -c constraints.txt"


class MissingExtraError(UserError):
    """A feature whose optional packages are not installed.

    Args:
        feature: What the user asked for, e.g. ``"update.trainer: deepspeed"``.
        extra: The extra of pyproject.toml that brings it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs optional packages; install them with: {install_command(extra)}")
