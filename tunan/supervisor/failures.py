"""When a replica that died is started again: exponential backoff and a crash-loop breaker."""

from tunan.config import Restart


class Failures:
    """Counts the failures in a row of one replica."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self.in_a_row = 0

    def add(self, ready_s: float | None) -> float | None:
        """One more failure, after `ready_s` of being ready (None: it never was).

        Returns the seconds to wait before the next start, or None: no more starts.
        """
        policy = self._policy
        if ready_s is not None and ready_s >= policy.healthy_s:
            self.in_a_row = 0
        self.in_a_row += 1
        if self.in_a_row >= policy.failures:
            return None
        # A float overflows beyond 2**1023; the limit is reached long before.
        doublings = min(self.in_a_row - 1, 60)
        return min(policy.longest_wait_s, policy.first_wait_s * 2.0**doublings)

    def forget(self) -> None:
        """Starts counting anew: somebody asked for a start."""
        self.in_a_row = 0
