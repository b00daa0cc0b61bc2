"""The port of the front door is free."""

from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """A service that is running already holds it, which is not wrong."""
    gateway = subject.deployment.gateway if subject.deployment else None
    if gateway is None or gateway.port == 0:
        return None
    host = "127.0.0.1" if gateway.host in ("0.0.0.0", "::", "localhost") else gateway.host  # noqa: S104
    used = subject.sight.port_in_use(f"{host}:{gateway.port}")
    needed = f"port {gateway.port} free"
    fix = f"ss -ltnp 'sport = :{gateway.port}', or set gateway.port"
    if used is None:
        return Answer(None, "it cannot be told", needed, fix)
    return Answer(not used, "something listens on it" if used else "free", needed, fix)


CHECK = Check("ports", "warning", look)
