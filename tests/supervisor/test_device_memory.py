"""Waiting until a device is let go before an engine starts on it again."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunan.supervisor.device_memory import always_free, nobody_has, wait_until_free


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A /proc in which process 7 has device 1 open."""
    descriptors = tmp_path / "proc" / "7" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "0").symlink_to("/dev/null")
    (descriptors / "5").symlink_to("/dev/davinci1")
    return tmp_path


def test_a_device_that_a_process_has_open_is_not_free(held: Path) -> None:
    assert not nobody_has([0, 1], held)()
    assert nobody_has([0, 2], held)()


def test_a_device_is_a_file_of_the_folder_that_is_named(held: Path, tmp_path: Path) -> None:
    assert nobody_has([1], held, files_in=tmp_path)()
    (held / "proc" / "7" / "fd" / "6").symlink_to(tmp_path / "davinci1")
    assert not nobody_has([1], held, files_in=tmp_path)()


def test_a_process_that_ends_while_it_is_looked_at_has_nothing_open(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    for name in ("listdir", "scandir"):  # one of them is pathlib's
        monkeypatch.setattr(os, name, _but_for(held / "proc" / "7" / "fd", getattr(os, name), gone))
    assert nobody_has([1], held)()


def _but_for(
    path: Path, call: Callable[..., Any], instead: Callable[..., Any]
) -> Callable[..., Any]:
    return lambda at: (instead if Path(at) == path else call)(at)


async def test_the_wait_ends_when_it_is_let_go(held: Path) -> None:
    asked = 0

    def is_free() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            (held / "proc" / "7" / "fd" / "5").unlink()
        return nobody_has([1], held)()

    assert await wait_until_free(is_free, 30)
    assert asked == 2


async def test_the_wait_is_bounded(held: Path) -> None:
    assert not await wait_until_free(nobody_has([1], held), 0)


async def test_there_is_nothing_to_wait_for_where_memory_goes_with_its_processes() -> None:
    assert await wait_until_free(always_free, 0)
