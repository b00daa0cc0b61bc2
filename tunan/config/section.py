"""What every section of a deployment file is: strict and frozen."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1)]
FilePath = Annotated[Path, BeforeValidator(_path)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """Strict and frozen: a wrong type or an unknown key is an error, never a guess."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def is_origin(url: str) -> bool:
    """Whether `url` is scheme, host and port, and nothing more."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    more = "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not more
