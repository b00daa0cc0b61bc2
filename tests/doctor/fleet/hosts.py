"""Machines behind a fake ssh: this one, with the tools of others on its PATH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.ascend.fakebin.machine import FakeMachine, a2

FAKE_TOOLS = Path(__file__).parents[2] / "ascend" / "fakebin"


class FakeHosts:
    """What the fake ssh reaches; `calls` are those it got."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._hosts: dict[str, dict[str, str]] = {}
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        fake = Path(__file__).with_name("fake_ssh.py")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {fake} "$@"\n')
        program.chmod(0o755)
        self._path = os.environ["PATH"]
        monkeypatch.setenv("PATH", f"{program.parent}:{self._path}")
        monkeypatch.setenv("FAKE_HOSTS", str(folder / "hosts.json"))
        monkeypatch.setenv("FAKE_LOG", str(folder / "calls"))
        monkeypatch.setenv("FAKE_PYTHON", sys.executable)
        self._write()

    def add(self, name: str, machine: FakeMachine | None = None, **variables: str) -> None:
        """A host with the NPUs of `machine`."""
        npus = (machine or a2(2)).write(self.folder / f"{name}.json")
        path = f"{FAKE_TOOLS}:{Path(sys.executable).parent}:{self._path}"
        self._hosts[name] = {"FAKE_MACHINE": str(npus), "PATH": path, **variables}
        self._write()

    def refuse(self, name: str, why: str) -> None:
        """A host that does not let anybody in."""
        self._hosts[name] = {"refuse": why}
        self._write()

    @property
    def calls(self) -> list[dict[str, str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def _write(self) -> None:
        (self.folder / "hosts.json").write_text(json.dumps(self._hosts))
