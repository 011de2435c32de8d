# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
"""The kind of model that every part of the configuration is, and the small words they share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One frozen part of the page. Unknown keys are errors, numbers are finite.

    The text under a field is its documentation and its description in the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True,
        extra='forbid',
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Name = Annotated[str, Field(pattern=r'^[a-z][a-z0-9_]*$', max_length=40)]
"""A ROS name of one token."""


def of_kind(content: Any, key: str, kind: str) -> Any:
    """The content of a section whose part `key` is of this kind when it names none."""
    part = content.get(key) if isinstance(content, dict) else None
    if isinstance(part, dict) and 'kind' not in part:
        return {**content, key: {'kind': kind, **part}}
    return content
