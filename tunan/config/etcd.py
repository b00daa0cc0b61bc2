"""`gateway.etcd`: several gateways that share one address elect its holder."""

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tunan.config.section import FilePath, Section, is_origin

Word = Annotated[str, Field(min_length=1)]


class Etcd(Section):
    """Where the election is held, and what is run when this gateway wins or leaves."""

    endpoints: tuple[str, ...] = Field(
        default=(), strict=False, description="http://HOST:PORT of etcd's members; none: alone"
    )
    prefix: str = Field(
        default="/tunan/gateway/",
        min_length=1,
        description="Where etcd keeps the keys of the gateways that share one address",
    )
    name: str | None = Field(
        default=None, min_length=1, description="Of this gateway; unset: host name and port"
    )
    lease_s: Annotated[int, Field(ge=2, le=60)] = Field(
        default=2, description="A holder that etcd does not hear of for so long is replaced"
    )
    give_way_s: float = Field(
        default=10,
        ge=0,
        strict=False,
        description="Without a ready replica for so long it leaves the address to a gateway that "
        "has one; after its hook failed it stays away for so long",
    )
    hook: tuple[Word, ...] = Field(
        default=(),
        strict=False,
        description="Program and its arguments; run with `acquire` or `release` after them",
    )
    hook_timeout_s: float = Field(
        default=2, gt=0, le=60, strict=False, description="How long the hook may take"
    )
    user: str | None = Field(default=None, min_length=1, description="User of etcd")
    password_file: FilePath | None = Field(default=None, description="File with its password")
    ca_file: FilePath | None = Field(
        default=None, description="Authorities that etcd at https:// is checked against"
    )
    cert_file: FilePath | None = Field(
        default=None, description="Certificate to show to etcd (PEM, with its key)"
    )

    @field_validator("endpoints")
    @classmethod
    def _addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for url in given:
            if not is_origin(url):
                raise ValueError(
                    f"{url} must be http://HOST:PORT or https://HOST:PORT, nothing after it"
                )
        return tuple(dict.fromkeys(url.rstrip("/") for url in given))

    @field_validator("prefix")
    @classmethod
    def _ends_at_a_slash(cls, given: str) -> str:
        # Or `/a` would also have the keys of `/ab`.
        return given.rstrip("/") + "/"

    @model_validator(mode="after")
    def _agree(self) -> "Etcd":
        given = [key for key in type(self).model_fields if getattr(self, key) != _DEFAULTS[key]]
        if given and not self.endpoints:
            raise ValueError(f"{given[0]} means nothing without endpoints")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file go together")
        return self


_DEFAULTS = {key: field.default for key, field in Etcd.model_fields.items()}
