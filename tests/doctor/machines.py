"""Machines for the checks: a healthy A2 server, from which a test takes one thing away."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tests.ascend.fakebin import answers
from tests.ascend.fakebin.machine import FakeMachine, a2
from tunan.ascend.probes.sight import Sight
from tunan.config import deployment_from
from tunan.doctor.checks import CHECKS
from tunan.doctor.finding import Finding, finding
from tunan.doctor.subject import Asked, Subject

ASCEND = "/usr/local/Ascend"
HOME = f"{ASCEND}/ascend-toolkit/latest"
KERNELS = f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel"
LIB = f"{HOME}/lib64"
MODEL = "/models/r1-7b"
LSCPU = {
    "Architecture": "aarch64",
    "CPU(s)": "192",
    "Vendor ID": "HiSilicon",
    "BIOS Model name": "Kunpeng 920 7260",
    "Core(s) per socket": "64",
    "Socket(s)": "4",
    "Flags": "fp asimd asimddp",
}
FILES: dict[str, str] = {
    "/etc/os-release": 'PRETTY_NAME="openEuler 24.03 (LTS)"\nID="openEuler"\n',
    "/proc/meminfo": "MemTotal: 1056000000 kB\nMemAvailable: 900000000 kB\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "/sys/block/nvme0n1/size": "8000000000",
    "/sys/devices/system/node/node0/cpulist": "0-95",
    "/sys/devices/system/node/node1/cpulist": "96-191",
    f"{ASCEND}/driver/version.info": "Version=25.5.1\ncompatible_version_fw=[7.0.0,7.8.99]\n",
    f"{ASCEND}/firmware/version.info": "Version=7.8.0.6.201\n",
    f"{HOME}/aarch64-linux/ascend_toolkit_install.info": "version=9.1.0\narch=aarch64\n",
    f"{MODEL}/config.json": json.dumps(
        {"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 28, "num_key_value_heads": 4}
    ),
    **{f"/sys/bus/pci/devices/0000:{0x41 + n:02x}:00.0/numa_node": str(n // 4) for n in range(8)},
}
PACKAGES = {
    "vllm_ascend": "0.23.0.post1",
    "vllm": "0.23.0",
    "torch": "2.10.0+cpu",
    "torch_npu": "2.10.0.post4",
    "triton-ascend": "3.2.2",
}
VARIABLES = {
    "ASCEND_HOME_PATH": HOME,
    "ASCEND_OPP_PATH": f"{HOME}/opp",
    "ATB_HOME_PATH": f"{ASCEND}/nnal/atb/latest",
    "LD_LIBRARY_PATH": f"{LIB}:{ASCEND}/driver/lib64/driver",
}
SYSTEM = {
    "kernel": "5.10.0",
    "machine": "aarch64",
    "python": "3.11.9",
    "glibc": "2.34",
    "hostname": "atlas-17",
    "user": "1000",
    "groups": "users HwHiAiUser",
    "open files": "65536",
}
CHECKPOINT = {"weights": 15 << 30, "kv_bytes_per_token": 57344, "max_len": 32768}


class FakeServer:
    """Answers the questions of a `Sight`; the attributes may be changed before it is asked."""

    def __init__(self, npus: FakeMachine | None = None) -> None:
        self.npus = npus or a2(8)
        self.files = dict(FILES)
        self.packages = dict(PACKAGES)
        self.variables = dict(VARIABLES)
        self.system = dict(SYSTEM)
        self.there = {
            HOME,
            f"{ASCEND}/nnal/atb/latest/lib/libatb.so",
            f"{ASCEND}/driver/lib64/driver/libascend_hal.so",
            *(f"{LIB}/{name}" for name in ("libascendcl.so", "libhccl.so", "libopapi.so")),
        }
        self.folders: dict[str, list[str]] = {
            "/dev": [*(f"davinci{n}" for n in range(len(self.npus.dies))), "davinci_manager",
                     "devmm_svm", "hisi_hdc", "null"],
            "/sys/block": ["nvme0n1"],
            "/sys/devices/system/node": ["node0", "node1", "possible"],
            KERNELS: ["ascend910b", "config"],
            MODEL: ["config.json", "model-00001-of-00001.safetensors"],
        }  # fmt: skip
        self.answers: dict[str, Any] = {
            "disk:/dev/shm": [64 << 30, 64 << 30],
            "address:atlas-17": "192.0.2.17",
            "port:127.0.0.1:8080": False,
            "run:timedatectl show -p NTPSynchronized --value": ran("yes\n"),
            "run:systemctl is-active firewalld": ran("inactive\n"),
            "run:systemctl is-active ufw": ran("inactive\n"),
            "rate:/dev/nvme0n1": 3.1e9,
            f"rate:{MODEL}/model-00001-of-00001.safetensors": 2.5e9,
            f"checkpoint:{MODEL}": CHECKPOINT,
        }

    def ask(self, kind: str, what: str) -> Any:
        """What `Sight` asks of a machine."""
        key = f"{kind}:{what}"
        if key in self.answers:
            return self.answers[key]
        tables: dict[str, Any] = {
            "file": self.files, "names": self.folders, "package": self.packages,
            "variable": self.variables, "system": self.system,
        }  # fmt: skip
        if kind == "exists":
            return what in self.there or what in self.files
        return self._run(shlex.split(what)) if kind == "run" else tables.get(kind, {}).get(what)

    def _run(self, words: list[str]) -> dict[str, Any]:
        if words[0] == "lscpu":
            return ran("".join(f"{key}: {value}\n" for key, value in LSCPU.items()))
        if self.npus.failure:
            return ran(self.npus.failure)
        tool = {"npu-smi": answers.npu_smi, "hccn_tool": answers.hccn_tool}.get(words[0])
        if tool is None:
            return {"status": None, "output": "", "error": f"{words[0]} is not installed"}
        return ran(tool(self.npus, words[1:]))


def ran(output: str) -> dict[str, Any]:
    return {"status": 0, "output": output, "error": None}


def asked(target: str = "auto", profile: str | None = None, **deployment: Any) -> Asked:
    """`deployment`: sections of the deployment file, if it has any."""
    values = {"model": {"path": MODEL}, **deployment}
    return Asked(target, deployment_from(values, "test") if deployment else None, profile)


def subject(server: FakeServer, wanted: Asked | None = None) -> Subject:
    return Subject(Sight(server.ask), wanted or asked())


def found(server: FakeServer, check: str, wanted: Asked | None = None) -> Finding | None:
    """The finding of one check; None if it does not apply."""
    (the_check,) = [c for c in CHECKS if c.id == check]
    answer = the_check.look(subject(server, wanted))
    return finding(the_check, answer) if answer else None
