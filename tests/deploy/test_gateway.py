"""What deploy/gateway ships: the hook that moves a virtual IP address, and keepalived's file.

The addresses are real, in a network namespace of the test; `arping` and `ndsend` are fakes that
note what they are asked.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.install.checking import shellcheck
from tunan.config import Gateway

DEPLOY = Path(__file__).parents[2] / "deploy" / "gateway"
SCRIPT = DEPLOY / "virtual-ip"
NAMESPACE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
V4, V6 = "192.0.2.10/32", "2001:db8::10/128"

may_have_namespaces = pytest.mark.skipif(
    shutil.which("ip") is None or subprocess.run((*NAMESPACE, "true")).returncode != 0,
    reason="no network namespaces here (or no iproute2)",
)


def run(folder: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    """The steps in one namespace, where `V` is the script and fakes of its helpers are found."""
    for name in ("arping", "ndsend"):
        fake = folder / "fakebin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/asked.$$\n')
        fake.chmod(0o755)
    return subprocess.run(
        (*NAMESPACE, "sh", "-c", "\n".join(("ip link set lo up", *steps))),
        capture_output=True,
        text=True,
        env=os.environ | {"V": str(SCRIPT), "PATH": f"{folder / 'fakebin'}:{os.environ['PATH']}"},
    )


def asked(folder: Path) -> list[str]:
    """What the fakes were asked."""
    return sorted(line for file in folder.glob("asked.*") for line in file.read_text().splitlines())


SHOW = "ip -oneline -brief address show dev lo"


@may_have_namespaces
@pytest.mark.parametrize("address", [V4, V6])
def test_the_address_comes_and_goes_however_often_it_is_said(tmp_path: Path, address: str) -> None:
    twice = [f"$V {address} lo {action} || echo failed" for action in ("acquire",) * 2]
    gone = [f"$V {address} lo {action} || echo failed" for action in ("release",) * 2]
    done = run(tmp_path, *gone[:1], *twice, SHOW, "echo then", *gone, SHOW)
    there, then = done.stdout.split("then\n")
    assert done.stderr == ""
    assert "failed" not in done.stdout
    assert there.count(address) == 1
    assert address not in then


@may_have_namespaces
def test_neighbours_are_told_of_what_is_acquired_and_of_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, f"$V {V4} lo acquire; $V {V6} lo acquire", "sleep 0.5")
    assert asked(tmp_path) == ["arping -U -c 3 -I lo 192.0.2.10", "ndsend 2001:db8::10 lo"]
    run(tmp_path, f"$V {V4} lo release; $V {V6} lo release", "sleep 0.5")
    assert len(asked(tmp_path)) == 2


@may_have_namespaces
def test_an_address_that_ip_refuses_fails_with_its_reason(tmp_path: Path) -> None:
    done = run(tmp_path, "$V 192.0.2.300/32 lo acquire")
    assert done.returncode == 1
    assert "192.0.2.300" in done.stderr


@may_have_namespaces
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("192.0.2.10/32 lo", "usage: virtual-ip ADDRESS/PREFIX DEVICE acquire|release"),
        ("192.0.2.10 lo acquire", "has no /PREFIX"),
        ("-6/32 lo acquire", "is no ADDRESS/PREFIX"),
        ("192.0.2.10/32/1 lo acquire", "is no ADDRESS/PREFIX"),
        ("192.0.2.10/32 nothere acquire", "there is no network device nothere"),
        ("192.0.2.10/32 lo flush", "flush is neither acquire nor release"),
    ],
)
def test_wrong_use_is_one_line_and_changes_nothing(tmp_path: Path, words: str, said: str) -> None:
    done = run(tmp_path, f"$V {words}; status=$?", SHOW, "exit $status")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "192.0.2" not in done.stdout


def test_shellcheck_accepts_the_script() -> None:
    assert shellcheck(SCRIPT.read_text(), "--shell=sh") == ""


def test_keepalived_asks_the_gateway_where_it_listens() -> None:
    text = (DEPLOY / "keepalived.conf").read_text()
    assert f"http://{Gateway().host}:{Gateway().port}/ready" in text
    assert text.count("{") == text.count("}")
