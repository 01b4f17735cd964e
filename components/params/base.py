"""What a section of a parameters file is made of: the base class, checked types, and marks on keys."""

from __future__ import annotations

import re
from contextlib import suppress
from math import inf
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text (it wants 1.0e-3); people mean the number."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
AtLeast2 = Annotated[int, Field(ge=2, lt=2**31)]
Width = Annotated[int, Field(gt=0, le=2**16)]  # of a network: wider ones fit in no memory
Fraction = Annotated[Float, Field(ge=0, le=1)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]


def _some_share(value: dict[int, float]) -> dict[int, float]:
    if not 0 < sum(value.values()) < inf:
        raise ValueError(f"expected a positive share for at least one number of steps, got {value}")
    return value


_Steps = Annotated[int, Field(strict=False, ge=1, le=1000)]  # JSON has only strings as keys
Hops = Annotated[dict[_Steps, NonNegative], AfterValidator(_some_share)]

# Marks, as in `threads: Annotated[int, MAY_CHANGE]`. A key without a mark decides what a run computes.
MAY_CHANGE = "may change when a run is continued: it decides how the run works, not what it computes"
NOT_DATA = "of an environment: has no part in which prompts there are"

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def texts(value: Any) -> list[str]:
    """All texts in lists and in the values of tables."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


class Section(BaseModel):
    """A section of a parameters file: unknown keys and wrong types are errors, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @field_validator("*")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """No text may hold control characters or halves of surrogate pairs: no file, URL or name does."""
        if _CONTROL.search(" ".join(texts(value))):
            raise ValueError("it holds control characters, or half of a surrogate pair")
        return value

    @classmethod
    def marked(cls, mark: str) -> set[str]:
        """The keys of this section that carry a mark."""
        return {key for key, field in cls.model_fields.items() if mark in field.metadata}
