"""Where a conversion may go and how it gets there."""

from pathlib import Path

import pytest

from tunan.checkpoint import exchange as module
from tunan.checkpoint.destination import Destination
from tunan.errors import CheckFailedError, OutsideError, UsageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def make(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("_", ".")).write_text(content)
    return path


def test_a_free_name_and_an_empty_directory_are_taken(source: Path, tmp_path: Path) -> None:
    Destination(tmp_path / "new").check(source, overwrite=False)
    Destination(make(tmp_path / "empty")).check(source, overwrite=False)


def test_an_existing_destination_is_refused(source: Path, tmp_path: Path) -> None:
    taken = make(tmp_path / "out", tunan_json="{}")
    with pytest.raises(UsageError, match=r"exists; .*--overwrite"):
        Destination(taken).check(source, overwrite=False)
    Destination(taken).check(source, overwrite=True)


def test_overwrite_deletes_nothing_but_converted_checkpoints(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a converted checkpoint"):
        Destination(make(tmp_path / "photos", a_jpg="")).check(source, overwrite=True)


def test_a_file_in_the_way_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(UsageError, match="exists"):
        Destination(tmp_path / "out").check(source, overwrite=False)


@pytest.mark.parametrize("place", ["source", "source/inside", "."])
def test_a_destination_that_overlaps_the_source_is_refused(
    source: Path, tmp_path: Path, place: str
) -> None:
    with pytest.raises(UsageError, match="overlap"):
        Destination(tmp_path / place).check(source, overwrite=True)


@pytest.mark.parametrize("place", [".", "out/..", "/"])
def test_a_destination_without_a_name_of_its_own_is_refused(source: Path, place: str) -> None:
    with pytest.raises(UsageError, match="a name of its own"):
        Destination(Path(place)).check(source, overwrite=False)


def test_a_source_that_is_called_like_the_partial_directory_is_not_emptied(tmp_path: Path) -> None:
    source = make(tmp_path / "out.partial", config_json="{}")
    with pytest.raises(UsageError, match="overlap"):
        Destination(tmp_path / "out").check(source, overwrite=False)


def test_a_partial_directory_that_is_somebody_elses_is_refused(
    source: Path, tmp_path: Path
) -> None:
    make(tmp_path / "out.partial", thesis_txt="")
    with pytest.raises(UsageError, match=r"out\.partial: is in the way"):
        Destination(tmp_path / "out").check(source, overwrite=False)
    make(tmp_path / "mine.partial", conversion_journal="", x_safetensors="")
    Destination(tmp_path / "mine").check(source, overwrite=False)


def test_a_file_or_a_link_in_place_of_the_partial_directory_is_refused(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.partial").touch()
    (tmp_path / "b.partial").symlink_to(make(tmp_path / "elsewhere"))
    for name in "ab":
        with pytest.raises(UsageError, match="is in the way"):
            Destination(tmp_path / name).check(source, overwrite=False)


def test_overwriting_a_link_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(make(tmp_path / "out", tunan_json="{}"))
    with pytest.raises(UsageError, match=r"symbolic link; give what it leads to, .*/out"):
        Destination(tmp_path / "link").check(source, overwrite=True)


def test_a_mount_point_cannot_be_made_in_one_step(source: Path) -> None:
    with pytest.raises(UsageError, match="is a mount point"):
        Destination(Path("/proc")).check(source, overwrite=False)


def test_a_parent_that_cannot_be_written_is_said_so(source: Path) -> None:
    with pytest.raises(OutsideError, match="/proc/self: not writable"):
        Destination(Path("/proc/self/out")).check(source, overwrite=False)


def test_a_loop_of_links_is_an_error_of_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="exists"):
        Destination(tmp_path / "loop").check(source, overwrite=False)


def test_publishing_never_replaces_what_appeared_meanwhile(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "out")
    make(destination.partial, new="new")
    make(destination.path, tunan_json="somebody else's")
    with pytest.raises(UsageError, match="exists"):
        destination.publish(overwrite=False)
    assert (destination.path / "tunan.json").read_text() == "somebody else's"
    assert (destination.partial / "new").exists()


def test_publishing_leaves_no_journal(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "out")
    make(destination.partial, new="new", conversion_journal="")
    destination.publish(overwrite=False)
    assert [path.name for path in destination.path.iterdir()] == ["new"]


def test_a_missing_parent_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: no such directory"):
        Destination(tmp_path / "nowhere/out").check(source, overwrite=False)


def test_more_than_the_disk_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match="GiB more are needed"):
        Destination(tmp_path / "out").check_space(1 << 60)


def test_clearing_keeps_what_is_named(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "out")
    with destination.locked():
        for name in ("a/b/keep", "a/b/drop", "a/c/drop", "keep"):
            path = destination.partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        destination.clear(keep={"a/b/keep", "keep"})
    left = sorted(
        p.relative_to(destination.partial).as_posix() for p in destination.partial.rglob("*")
    )
    assert left == ["a", "a/b", "a/b/keep", "keep"]


@pytest.mark.parametrize("exchange", [True, False])
def test_publishing_replaces_what_was_there(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:  # as on a file system that cannot swap two names
        monkeypatch.setattr(module, "_RENAME_EXCHANGE", 1 << 30)
    destination = Destination(make(tmp_path / "out", tunan_json="old"))
    make(destination.partial, new="new", conversion_journal="")
    destination.publish(overwrite=True)
    assert [path.name for path in destination.path.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_lock_outlives_neither_its_block_nor_an_error(tmp_path: Path) -> None:
    destination = Destination(tmp_path / "out")
    with pytest.raises(RuntimeError), destination.locked():
        raise RuntimeError
    with destination.locked():
        pass
