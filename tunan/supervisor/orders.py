"""What the service, and each replica, is told to do: by signals, and by `tunan rollout`."""

import asyncio
import signal
from dataclasses import dataclass, field


class Stop:
    """SIGTERM and SIGINT: the first asks to drain, the second to end at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self.signal = signal.SIGTERM

    def install(self) -> None:
        """Takes both signals over on the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard, number)

    def _heard(self, number: signal.Signals) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()
        self.signal = number


@dataclass
class Orders:
    """What one replica is told: to drain and stay away, or to drain and start again.

    `insisted`: without draining. `renewing`: it starts again, so what is cut goes on elsewhere.
    """

    insisted: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    renewing: bool = False

    def stop(self) -> None:
        """Drain, end, and do not start again; stronger than `renew`."""
        self.renewing = False
        self.asked.set()

    def renew(self) -> None:
        """Drain, end and start again."""
        self.renewing = not self.asked.is_set() or self.renewing
        self.asked.set()

    def obeyed(self) -> None:
        """It has ended and starts again."""
        self.renewing = False
        self.asked.clear()
