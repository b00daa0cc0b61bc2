"""`tunan doctor --nodes` through a fake ssh, which runs a real far side on this machine."""

import ast
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.fakebin.machine import FakeMachine, a2
from tests.doctor.fleet.hosts import FakeHosts
from tunan.cli.main import main
from tunan.doctor.fleet import connection
from tunan.doctor.fleet.connection import Connection, LostError

CPU = ["doctor", "--target", "cpu", "--json", "--nodes"]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHosts:
    return FakeHosts(tmp_path, monkeypatch)


def examined(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    status = main(arguments)
    return status, json.loads(capsys.readouterr().out)


def state_of(result: Any, check: str) -> str:
    (state,) = [found["state"] for found in result["between"] if found["id"] == check]
    return str(state)


def ports(first: int) -> tuple[str, str]:
    return f"198.51.100.{first}", f"198.51.100.{first + 1}"


def test_each_machine_is_examined_and_all_are_compared(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("n1", a2(2, addresses=ports(1)))
    hosts.add("n2", a2(2, addresses=ports(3), version="25.2.0", mtu=(4200, 4200)))
    status, result = examined(
        ["doctor", "--target", "ascend910b3", "--json", "--nodes", "n1,n2"], capsys
    )
    assert status == 1
    assert [machine["name"] for machine in result["machines"]] == ["n1", "n2"]
    first = {found["id"]: found["state"] for found in result["machines"][0]["findings"]}
    assert first["npu-health"] == first["roce-ping"] == "ok"
    passed = ["reached", "same-chip", "same-tls", "roce-subnet", "npu-ping", "clock-skew"]
    assert {check: state_of(result, check) for check in passed} == dict.fromkeys(passed, "ok")
    assert state_of(result, "same-driver") == state_of(result, "same-mtu") == "failed"


def test_a_machine_that_lets_nobody_in_does_not_hide_the_others(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("n1")
    hosts.refuse("n2", "n2: Permission denied (publickey).")
    status, result = examined([*CPU, "n1,n2,n3"], capsys)
    assert status == 1
    alone, refused, unknown = result["machines"]
    assert alone["error"] is None
    assert alone["findings"]
    assert refused["error"] == "n2: Permission denied (publickey)."
    assert "Could not resolve hostname n3" in unknown["error"]
    assert state_of(result, "reached") == "failed"


def test_the_report_for_people_has_a_part_for_each_machine(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("n1")
    hosts.refuse("n2", "no \x1b[2Jroute")
    main(["doctor", "--target", "cpu", "--nodes", "n1,n2"])
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("== ")] == [
        "== n1",
        "== n2",
        "== between the machines",
    ]
    assert all(line.isprintable() for line in shown.split("\n"))


def test_ssh_asks_for_no_password_and_is_handed_nothing_of_ours_to_read(
    hosts: FakeHosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("n1")
    hosts.add("n2")
    examined([*CPU, "n1,n2"], capsys)
    first, second = hosts.calls
    assert "BatchMode=yes" in first["options"]
    assert not any("StrictHostKeyChecking" in option for option in first["options"])
    assert first["command"] == second["command"]  # no host, no question is in it


def test_the_nodes_of_the_deployment_are_meant_where_none_are_named(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("192.0.2.1")
    hosts.add("192.0.2.2")
    config = tmp_path / "deploy.yaml"
    config.write_text(
        f"model: {{path: {tmp_path}/missing}}\ntarget: cpu\nnodes: [192.0.2.1, 192.0.2.2]\n"
        "parallel: {pipeline: 2}\n"
    )
    _, result = examined(["doctor", "--json", "--nodes", "--config", str(config)], capsys)
    assert [machine["name"] for machine in result["machines"]] == ["192.0.2.1", "192.0.2.2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--nodes"], "give host1,host2"),
        (["--nodes", "a", "--from", "b.tar.gz"], "give one of them"),
        (["--nodes=-oProxyCommand=id"], "is no name of a machine"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert len(said.splitlines()) == 1


def test_a_bundle_of_each_machine_is_compared_as_the_machines_were(
    hosts: FakeHosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.add("atlas-17", a2(2, addresses=ports(1)))
    hosts.add("atlas-18", a2(2, addresses=ports(3), version="25.2.0", mtu=(4200, 4200)))
    hosts.refuse("atlas-19", "atlas-19: Permission denied (publickey).")
    folder = tmp_path / "machines"
    nodes = "atlas-17,atlas-19,atlas-18"
    looked = ["doctor", "--target", "ascend910b3", "--json", "--bundle", str(folder)]
    _, live = examined([*looked, "--nodes", nodes], capsys)
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["node-1.tar.gz", "node-3.tar.gz"]
    for file in files:
        with tarfile.open(file) as archive:
            facts = archive.extractfile("doctor/facts.json")
            assert facts is not None
            text = facts.read().decode()
        assert not any(private in text for private in ("atlas-1", "198.51.100."))
    arguments = [part for file in files for part in ("--from", str(file))]
    _, carried = examined(["doctor", "--json", *arguments], capsys)
    compared = ["same-chip", "same-driver", "same-mtu", "same-tls"]
    assert {check: state_of(carried, check) for check in compared} == {
        check: state_of(live, check) for check in compared
    }
    alone = [result["machines"][0]["findings"] for result in (live, carried)]
    states = [{found["id"]: found["state"] for found in findings} for findings in alone]
    assert states[0] == states[1]


def test_bundles_of_machines_go_into_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("")
    assert main(["doctor", "--nodes", "a", "--bundle", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["doctor", "--nodes", "a", "--bundle", str(tmp_path / "there" / "x")]) == 3
    assert "name a folder that can be made" in capsys.readouterr().err


def test_what_a_login_shell_prints_first_is_passed_over(hosts: FakeHosts) -> None:
    hosts.add("n1")
    greeting = hosts.folder / "bin" / "ssh"
    greeting.write_text(greeting.read_text().replace("exec", "echo Welcome!\nexec", 1))
    door = Connection("n1")
    try:
        door.greet()
        assert door.ask("exists", "/") is True
        assert door.ask("run", "no-such-program -x")["error"] == "no-such-program is not installed"
        assert door.ask("no such kind", "x") is None
        clock = door.clock()
        assert clock
        assert abs(clock[0]) <= 1 + clock[1]
    finally:
        door.close()
        door.release()


def lost_by(hosts: FakeHosts, script: str) -> str:
    (hosts.folder / "bin" / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    door = Connection("n1")
    try:
        door.greet()
        return f"no loss, but {door.ask('exists', '/')}"
    except LostError as error:
        return str(error)
    finally:
        door.close()
        door.release()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo first >&2; echo 'Connection refused' >&2; exit 255", "Connection refused"),
        ("exit 3", "ssh ended with status 3"),
        (f"echo {'tunan-far-side-1'}; echo nonsense; sleep 60", "something that is no answer"),
        ("echo tunan-far-side-1; echo '{}'; sleep 60", "something that is no answer"),
        ("echo tunan-far-side-1; exec yes | tr -d '\\n'", "does not end"),
        ("exec sleep 60", "no answer in time"),
    ],
)
def test_a_machine_that_is_lost_is_told_in_one_line(
    hosts: FakeHosts, script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 0.5)
    monkeypatch.setattr(connection, "MOST_ANSWER", 1 << 20)
    assert why in lost_by(hosts, script)


def test_without_ssh_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, result = examined([*CPU, "n1"], capsys)
    assert status == 1
    assert "ssh cannot be started: No such file" in result["machines"][0]["error"]


def test_what_is_sent_is_python_3_8() -> None:
    for path in connection._MODULES.values():
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_what_is_sent_needs_nothing_of_tunan_there(hosts: FakeHosts) -> None:
    """The far side's Python sees neither this clone nor its packages."""
    isolated = hosts.folder / "isolated"
    isolated.mkdir()
    python = isolated / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    hosts.add("n1", PATH=f"{isolated}:/usr/bin:/bin")
    door = Connection("n1")
    try:
        door.greet()
        assert door.ask("package", "pydantic") is None
        assert door.ask("checkpoint", "/nowhere") is None
        assert door.ask("system", "python") == sys.version.split()[0]
    finally:
        door.close()
        door.release()


def test_the_environment_that_a_service_gets_is_what_is_looked_at(
    hosts: FakeHosts, tmp_path: Path
) -> None:
    prefix = tmp_path / "opt"
    prefix.mkdir()
    (prefix / "env.sh").write_text(
        "echo noise\nexport ASCEND_HOME_PATH=/there\nexport SECRET_TOKEN=sesame\n"
    )
    hosts.add("n1", FakeMachine(()))
    door = Connection("n1", str(prefix))
    try:
        door.greet()
        assert door.ask("variable", "ASCEND_HOME_PATH") == "/there"
        assert door.ask("variable", "SECRET_TOKEN") is None
    finally:
        door.close()
        door.release()
