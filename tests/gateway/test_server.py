"""Binding the front door's socket."""

import resource

import pytest

from tests.gateway.fleet import fleet
from tunan.errors import OutsideError, UsageError
from tunan.gateway.server import address_of, bind


def test_a_taken_port_is_said_in_one_line() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OutsideError, match=f"127.0.0.1:{port} is taken"):
            bind("127.0.0.1", port)


def test_an_address_of_another_machine_is_said_in_one_line() -> None:
    with pytest.raises(OutsideError, match="cannot listen on"):
        bind("203.0.113.1", 0)


def test_a_name_that_does_not_exist_is_said_in_one_line() -> None:
    with pytest.raises(UsageError, match="cannot find the address"):
        bind("no such host", 0)


def test_the_address_is_a_url() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_the_number_of_connections_is_not_left_at_what_programs_start_with() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        async with fleet(1):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
