"""How many engines serve, which run elsewhere, and when one that died is started again."""

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tunan.config.section import Count, Section, is_origin


class Restart(Section):
    """When a replica that died is started again, and when no longer."""

    first_wait_s: float = Field(
        default=1, ge=0, strict=False, description="Wait before the first restart; doubles"
    )
    longest_wait_s: float = Field(
        default=60, ge=0, strict=False, description="Longest wait before a restart"
    )
    failures: Count = Field(default=5, description="Failures in a row after which it stays down")
    healthy_s: float = Field(
        default=300, ge=0, strict=False, description="Ready for so long, failures are forgotten"
    )
    device_free_s: float = Field(
        default=60, ge=0, strict=False, description="Longest wait until an NPU's memory is free"
    )
    heal: bool = Field(
        default=True, description="Change a setting after an error that the change mends"
    )


class RemoteReplica(Section):
    """An engine that was started elsewhere: only asked, never started or stopped."""

    url: str = Field(description="http://HOST:PORT of an OpenAI server")
    role: Literal["active", "standby"] = Field(default="active", description="active or standby")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not is_origin(url):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT, nothing after it")
        return url.rstrip("/")


class Replicas(Section):
    """Copies of the engine. A list of engines elsewhere stands for `elsewhere` alone."""

    count: Annotated[int, Field(ge=0)] = Field(default=1, description="Active replicas")
    standby: Annotated[int, Field(ge=0)] = Field(default=0, description="Warm standby replicas")
    elsewhere: tuple[RemoteReplica, ...] = Field(
        default=(), strict=False, description="Engines started elsewhere: url, role"
    )
    restart: Restart = Restart()

    @property
    def managed(self) -> int:
        """How many engines are started here, standbys included."""
        return self.count + self.standby

    @model_validator(mode="before")
    @classmethod
    def _list_of_engines(cls, value: Any) -> Any:
        return {"count": 0, "elsewhere": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _somebody_serves(self) -> "Replicas":
        if not self.count and not any(replica.role == "active" for replica in self.elsewhere):
            raise ValueError("no replica is active; set count to 1 or more, or name one elsewhere")
        urls = [replica.url for replica in self.elsewhere]
        if len(set(urls)) < len(urls):
            raise ValueError("elsewhere names a url twice")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        section = handler.resolve_ref_schema(handler(schema))
        engines = {"type": "array", "items": section["properties"]["elsewhere"]["items"]}
        return {"anyOf": [section, engines]}
