"""A bundle carries a machine without its names, and is checked anywhere with the same result."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ascend.fakebin.machine import a2
from tests.doctor.machines import FakeServer, asked, subject
from tunan.doctor.bundle import read_bundle, write_bundle
from tunan.doctor.examining import Examination, examine
from tunan.doctor.subject import Subject
from tunan.errors import UsageError

TWO_NODES = asked(parallel={"tensor": 16}, nodes=["10.7.7.17", "10.7.7.18"])
PORTS = tuple(f"10.8.8.{number}" for number in range(8))


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, Examination]:
    server = FakeServer(a2(link="DOWN", addresses=PORTS))
    server.answers["address:atlas-17"] = "10.7.7.17"
    log = tmp_path / "state/r1-8080/engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("worker on 10.7.7.18 (atlas-17), Authorization: Bearer sesame-open\n")
    log.with_name("engine.log.1").write_text("args: {'api_key': ['sesame-open']}\n")
    examined = subject(server, TWO_NODES)
    examination = examine(examined)
    path = tmp_path / "machine.tar.gz"
    write_bundle(path, examined, examination, tmp_path / "state")
    return path, examination


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        return {name: file.read().decode() for name, file in files.items() if file}


def test_a_bundle_gives_the_findings_that_the_machine_gave(
    bundle: tuple[Path, Examination],
) -> None:
    path, there = bundle
    here = examine(Subject(*read_bundle(path)))
    assert here.target == there.target
    states = [(f.id, f.state, f.needed) for f in there.findings]
    assert [(f.id, f.state, f.needed) for f in here.findings] == states
    assert ("roce-link", "failed") in {(f.id, f.state) for f in here.findings}


def test_nothing_private_is_in_it(bundle: tuple[Path, Examination]) -> None:
    files = contents(bundle[0])
    assert set(files) == {
        "doctor/facts.json", "doctor/report.txt", "doctor/logs/r1-8080-engine.log",
        "doctor/logs/r1-8080-engine.log.1",
    }  # fmt: skip
    for text in files.values():
        for private in ("10.7.7.", "10.8.8.", "atlas-17", "sesame"):
            assert private not in text


def test_a_bundle_is_not_written_over(bundle: tuple[Path, Examination], tmp_path: Path) -> None:
    examined = subject(FakeServer())
    with pytest.raises(UsageError, match="exists already"):
        write_bundle(bundle[0], examined, examine(examined), tmp_path / "state")


def packed(path: Path, name: str, text: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.size = kind, len(text.encode()) if kind == tarfile.REGTYPE else 0
        entry.linkname = "/etc/passwd"
        archive.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("doctor/facts.json", "{", "not valid JSON"),
        ("doctor/facts.json", "[]", "not a record"),
        ("doctor/facts.json", '{"format": 2, "answers": {}}', "of a newer Tunan"),
        ("other.json", "{}", "no facts.json in it"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_bundle(packed(tmp_path / "b.tar.gz", name, text))


def test_a_link_in_a_bundle_is_not_followed(tmp_path: Path) -> None:
    path = packed(tmp_path / "b.tar.gz", "doctor/facts.json", "", tarfile.SYMTYPE)
    with pytest.raises(UsageError, match=r"no facts\.json in it"):
        read_bundle(path)


def test_what_is_too_large_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    with gzip.open(path, "wb") as file:
        entry = tarfile.TarInfo("doctor/first")
        entry.size = 1 << 40
        file.write(entry.tobuf() + bytes(1 << 20))
    with pytest.raises(UsageError, match=r"no facts\.json in it"):
        read_bundle(path)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_bundle(tmp_path / "missing.tar.gz")


def test_a_truncated_bundle_is_named(bundle: tuple[Path, Examination]) -> None:
    content = bundle[0].read_bytes()
    bundle[0].write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=r"damaged|no facts\.json|not a bundle|Compressed file"):
        read_bundle(bundle[0])


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["target", "deployment", "profile"]),
        st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()),
    )
)
def test_any_question_in_a_bundle_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, values: object
) -> None:
    facts = {"format": 1, "answers": {}, "asked": values}
    path = packed(tmp_path_factory.mktemp("b") / "b.tar.gz", "doctor/facts.json", json.dumps(facts))
    try:
        examination = examine(Subject(*read_bundle(path)))
    except UsageError:
        return
    assert examination.findings
