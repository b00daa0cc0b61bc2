"""What this process keeps in memory, as the kernel counts it."""

from pathlib import Path


def resident(kind: str) -> int:
    """Bytes of one kind: `RssAnon` (anonymous), `RssFile` (mapped files) or `VmRSS` (all)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024
