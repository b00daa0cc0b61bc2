"""What is advised about a machine that was not reached."""

import pytest

from tunan.doctor.fleet.advice import advice
from tunan.doctor.fleet.report import reported
from tunan.doctor.fleet.visit import Visited

NO_NAME = "ssh: Could not resolve hostname nosuchhost.invalid: Name or service not known"
NO_WAY = "ssh: connect to host n2 port 22: Connection timed out"


@pytest.mark.parametrize(
    ("lost", "command", "remark"),
    [
        (NO_NAME, "getent hosts n2", "check the name"),
        (NO_WAY, "ping -c 3 n2", "the network"),
        ("ssh: connect to host n2 port 22: No route to host", "ping -c 3 n2", "the network"),
        ("Timeout, server n2 not responding.", "ping -c 3 n2", "the network"),
        ("it gave no answer in time", "ping -c 3 n2", "the network"),
        ("ssh: connect to host n2 port 22: Connection refused", "nc -vz n2 22", "start sshd"),
        ("Host key verification failed.", "ssh root@n2 true; ssh-copy-id root@n2", "host's key"),
        ("n2: Permission denied (publickey).", "ssh root@n2 true; ssh-copy-id root@n2", "by hand"),
        ("no python3 is there", "ssh root@n2 command -v python3", "3.8 or newer"),
        ("ssh ended with status 255", "ssh -v root@n2 true", "reason"),
        ("ssh cannot be started: No such file", "command -v ssh", "on this machine"),
    ],
)
def test_the_advice_is_about_what_ssh_said_and_names_the_machine(
    lost: str, command: str, remark: str
) -> None:
    told = advice({"root@n2": lost})
    assert told.startswith(f"{command} # ")
    assert remark in told.partition(" # ")[2]


def test_each_machine_that_is_lost_has_its_own_advice() -> None:
    report = reported([Visited("nosuchhost.invalid", lost=NO_NAME), Visited("n2", lost=NO_WAY)])
    (finding,) = report.between
    assert (finding.id, finding.state) == ("reached", "failed")
    fix = finding.fix or ""
    assert fix.startswith("getent hosts nosuchhost.invalid; ping -c 3 n2 # check the name")
    assert "HOST" not in fix
