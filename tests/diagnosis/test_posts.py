"""Errors that people posted: each is named now, or shown as what it is."""

import pytest

from tests.diagnosis.accuracy import SEEDS, diagnosed
from tests.diagnosis.posts import Post, measure_posts, posts
from tunan.diagnosis.knowledge import knowledge

POSTS = posts()


@pytest.mark.parametrize("post", POSTS, ids=lambda post: post.source.split("/", 3)[3])
def test_a_posted_error_is_named_or_shown(post: Post) -> None:
    for seed in SEEDS:
        found = diagnosed(post.log(seed))
        assert post.judged(found) == "right", (found.id, found.cause)


def test_each_post_stands_once_and_names_entries_that_are_there() -> None:
    assert len({post.source for post in POSTS}) == len(POSTS) >= 70
    names = {entry.id for entry in knowledge().entries}
    assert {name for post in POSTS for name in post.right} <= names
    assert {post.at_first for post in POSTS} <= {"right", "missed", "wrong"}


def test_what_a_wrong_name_or_none_would_be_counted_as() -> None:
    known, other = POSTS[0], next(post for post in POSTS if post.right and "hccl" in post.right[0])
    assert known.judged(diagnosed(other.log(1))) == "wrong"
    unknown = next(post for post in POSTS if not post.right)
    assert known.judged(diagnosed(unknown.log(1))) == "missed"


def test_the_figures_at_first_are_those_of_the_file() -> None:
    first, second = measure_posts(seeds=(1,)).values()
    assert (first["named_at_first"], first["with_a_cause_to_name"]) == (16, 45)
    assert (second["named_at_first"], second["with_a_cause_to_name"]) == (10, 19)
