"""The CANN toolkit that goes with the installed vllm-ascend."""

from tunan.ascend.probes.versions import parse_package, version_key
from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import TOOLKITS, Subject

_INFO = "ascend_toolkit_install.info"


def look(subject: Subject) -> Answer | None:
    """Where set_env.sh or the usual folders lead; the version from its install.info."""
    if not subject.wants_cann:
        return None
    release = subject.release
    needed = f"CANN {release.cann}, which vllm-ascend {release.vllm_ascend} goes with"
    home = subject.cann_home
    if home is None:
        return Answer(False, f"no toolkit in {' or '.join(TOOLKITS)}", needed, install(subject))
    version = toolkit_version(subject)
    if version is None:
        return Answer(None, f"no {_INFO} in {home}", needed, f"ls {home}/*-linux")
    passed = version_key(version) == version_key(release.cann)
    return Answer(passed, f"{version} in {home}", needed, install(subject))


def toolkit_version(subject: Subject) -> str | None:
    """Of the toolkit that is used; None where it does not tell or there is none."""
    home = subject.cann_home
    if home is None:
        return None
    for folder in ("aarch64-linux", "x86_64-linux", ""):
        path = f"{home}/{folder}/{_INFO}".replace("//", "/")
        package = parse_package(subject.sight.read(path) or "", path).value
        if package:
            return package.version
    return None


CHECK = Check("toolkit", "error", look)
