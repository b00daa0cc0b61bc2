"""What to do about machines that ssh did not reach, by what ssh said."""

from collections.abc import Mapping

from tunan.doctor.fleet.hosts import bare

# Words of what was said, the command (HOST as it was given, NAME without the user), the remark.
_ADVICE = (
    (("ssh cannot be started",), "command -v ssh", "install the ssh client on this machine"),
    (
        ("could not resolve", "name or service not known", "no address associated"),
        "getent hosts NAME",
        "check the name, or give the address",
    ),
    (
        (
            *("timed out", "timeout", "not responding", "no answer in time"),
            *("no route to host", "network is unreachable", "host is down"),
        ),
        "ping -c 3 NAME",
        "check that it is on, the network, and the firewall for ssh",
    ),
    (("connection refused",), "nc -vz NAME 22", "nobody listens: systemctl start sshd there"),
    (
        ("host key", "permission denied", "too many authentication failures"),
        "ssh HOST true; ssh-copy-id HOST",
        "once by hand, as it asks for the host's key and the password",
    ),
    (("python",), "ssh HOST command -v python3", "install python3, 3.8 or newer, there"),
    (("",), "ssh -v HOST true", "what it says is the reason"),
)


def advice(lost: Mapping[str, str]) -> str:
    """Commands with the machines' names, then remarks. `lost`: host -> the line that says why."""
    chosen = [(host, *_chosen(line.lower())) for host, line in lost.items()]
    commands = [
        command.replace("HOST", host).replace("NAME", bare(host)) for host, command, _ in chosen
    ]
    remarks = dict.fromkeys(remark for _, _, remark in chosen)
    return f"{'; '.join(dict.fromkeys(commands))} # {'; '.join(remarks)}"


def _chosen(said: str) -> tuple[str, str]:
    return next(
        (command, remark)
        for words, command, remark in _ADVICE
        if any(word in said for word in words)
    )
