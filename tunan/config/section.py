"""What every section of a deployment file is: strict and frozen."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Strict and frozen: a wrong type or an unknown key is an error, never a guess."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
