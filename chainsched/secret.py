"""Secrets by name: an input holds the name, the job reads the value, and no row ever contains it.

Revealed values are remembered in this process, so that they can be masked in everything that jobs return, raise or
report.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from chainsched.conf import get_config
from chainsched.exceptions import UnknownSecret

FORMAT = "chainsched-secret"
ENVIRONMENT_PREFIX = "CHAINSCHED_SECRET_"
MAX_NAME_LENGTH = 200
# Shorter values would be found in the middle of ordinary words.
SHORTEST_MASKED = 6
MAX_REMEMBERED = 1000

_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Secret:
    """The name of a secret, as a type for fields of inputs; ``reveal`` returns the value inside a job."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > MAX_NAME_LENGTH:
            raise ValueError(f"the name of a secret is a text of 1 to {MAX_NAME_LENGTH} characters")

    def reveal(self) -> str:
        """The value, from the project's SECRETS or the environment; raises UnknownSecret."""
        resolve = get_config().secrets or from_environment
        value = resolve(self.name)
        if not isinstance(value, str):
            raise UnknownSecret(self.name, variable=variable_of(self.name))
        _revealed.remember(value)
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Take a Secret or its name; store the name."""
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.name),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "format": FORMAT, "description": "The name of a secret, not the secret itself."}


def variable_of(name: str) -> str:
    """The environment variable that holds a secret of this name."""
    return ENVIRONMENT_PREFIX + _NOT_IN_VARIABLES.sub("_", name.upper()).strip("_")


def from_environment(name: str) -> str | None:
    """The value from the environment; only from variables with the prefix for secrets."""
    return os.environ.get(variable_of(name))


def revealed() -> tuple[str, ...]:
    """The values that jobs of this process have revealed and that must be masked, the longest first."""
    return _revealed.values()


class _Revealed:
    """The most recently revealed values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, None] = {}

    def remember(self, value: str) -> None:
        with self._lock:
            if len(value) >= SHORTEST_MASKED:
                # The most recently revealed value is the last to be dropped.
                self._values.pop(value, None)
                self._values[value] = None
                while len(self._values) > MAX_REMEMBERED:
                    del self._values[next(iter(self._values))]

    def values(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._values, key=len, reverse=True))


_revealed = _Revealed()
