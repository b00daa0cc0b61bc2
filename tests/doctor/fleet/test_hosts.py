"""Names that ssh is given are names, never options or words of a shell."""

import pytest

from tunan.doctor.fleet.connection import Connection
from tunan.doctor.fleet.hosts import MOST, bare, is_name, parse_hosts
from tunan.errors import UsageError


def test_hosts_are_separated_by_commas() -> None:
    assert parse_hosts("node1, admin@node2,10.0.0.3,fe80::1") == (
        "node1",
        "admin@node2",
        "10.0.0.3",
        "fe80::1",
    )


@pytest.mark.parametrize(
    "text",
    [
        "-oProxyCommand=id", "a,-oProxyCommand=id", "a;id", "$(id)", "a b", "`id`", "a|b", "a'b",
        "u@-o", "@a", "a@b@c", "a\nb", "图南", "a" * 400,
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no name of a machine"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (",", "names no machine"),
        ("a,b,a", "named twice"),
        (",".join(f"n{n}" for n in range(MOST + 1)), "at most"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_hosts(text)


def test_addresses_are_not_looked_up() -> None:
    assert bare("root@node1") == "node1"
    assert [is_name(host) for host in ("root@node1", "root@10.0.0.1", "fe80::1")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("prefix", ["/opt/$(id)", "opt", "/opt/a b", "/opt;id"])
def test_a_prefix_that_a_shell_would_read_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        Connection("node1", prefix)
