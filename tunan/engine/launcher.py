"""The engine's own process: `python -m tunan.engine.launcher FLAGS`, flags as `vllm serve`'s.

Started by the supervisor in a process group of its own. It dies with the supervisor, and
so does every process below it: the kernel is asked for that (PR_SET_PDEATHSIG) here, in
each forked process, and in each spawned one, since multiprocessing imports the main module
again there (as `__mp_main__`).
"""

import ctypes
import gc
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
SUPERVISOR_PID = "TUNAN_SUPERVISOR_PID"


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forks_die_with_parent() -> None:
    """Has every process that is forked from here on die with the one that forked it."""
    parent = os.getpid()

    def remember() -> None:
        nonlocal parent
        parent = os.getpid()

    def follow() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)  # it died before we could ask to die with it

    os.register_at_fork(before=remember, after_in_child=follow)


def main() -> None:
    """Runs vLLM's OpenAI server until it is told to stop."""
    supervisor = os.environ.get(SUPERVISOR_PID)
    if supervisor is not None and os.getppid() != int(supervisor):
        sys.exit("the supervisor is gone")  # it died before we could ask to die with it
    forks_die_with_parent()
    # A million objects are made while importing, and they stay: looking them through, again and
    # again, takes a sixth of the time.
    gc.disable()
    from tunan.engine import fast_start, timeline

    timeline.mark("process")
    fast_start.import_engine()
    timeline.mark("imports")
    gc.freeze()
    gc.enable()
    fast_start.run()


if __name__ in ("__main__", "__mp_main__"):
    die_with_parent()

if __name__ == "__main__":
    main()
