"""How a machine is asked."""

import threading

from tunan.ascend.probes.sight import Sight


def test_what_several_threads_want_to_know_is_asked_once() -> None:
    asked: list[str] = []
    all_here = threading.Barrier(4)

    def ask(kind: str, what: str) -> str:
        asked.append(what)
        return what

    sight = Sight(ask, side_by_side=True)

    def look() -> None:
        all_here.wait(20)
        sight.answer("file", "/a")

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert asked == ["/a"]


def test_after_the_end_what_is_known_stays_known_and_nothing_is_asked() -> None:
    asked: list[str] = []

    def ask(kind: str, what: str) -> str:
        asked.append(what)
        return what

    sight = Sight(ask)
    assert sight.read("/a") == "/a"
    sight.close()
    assert (sight.read("/a"), sight.read("/b")) == ("/a", None)
    assert asked == ["/a"]
