"""Secrets in texts that leave the process: log lines, error messages, and what goes to MLflow."""

from __future__ import annotations

import logging
import os
import re

_SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE)
# Up to the last @, also where a password holds a slash; a number after the colon and before a slash is a port.
_USER = re.compile(r"(?<=://)(?:[^/?#\s'\":]*:(?!\d+(?:/|\s|$))[^\s'\"]*|[^/?#\s'\"]*)@")
_QUERY = re.compile(r"(?<=[?&])((?:api_?key|access_token|token|password|secret|sig)=)[^&\s'\"]+", re.IGNORECASE)
_LEAST = 8  # characters: a shorter value would mask ordinary words


def without_credentials(text: str) -> str:
    """The text, with the user names, passwords and keys in its URLs replaced by ***."""
    return _QUERY.sub(r"\1***", _USER.sub("***@", text))


def masked(text: str) -> str:
    """The same, and without the value of any environment variable whose name says that it is secret."""
    text = without_credentials(text)
    for name, value in os.environ.items():
        if len(value) >= _LEAST and _SECRET.search(name):
            text = text.replace(value, "***")
    return text


class MaskSecrets(logging.Filter):
    """Masks the log lines of the logger that it is added to."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked(record.getMessage()), ()
        return True
