"""The package of operator kernels for this kind of chip."""

from tunan.doctor.commands import install
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject

_FOLDER = "opp/built-in/op_impl/ai_core/tbe/kernel"
_CHIPS = {"ascend910b": "ascend910b", "ascend910c": "ascend910_93", "ascend310p": "ascend310p"}


def look(subject: Subject) -> Answer | None:
    """It is installed apart from the toolkit, and one for another chip does nothing here."""
    chip = _CHIPS.get(subject.family)
    if not subject.wants_cann or subject.cann_home is None or chip is None:
        return None
    folder = f"{subject.cann_home}/{_FOLDER}"
    there = subject.sight.names(folder)
    needed = f"the operator kernels of CANN {subject.release.cann} for {chip}"
    fix = install(subject)
    if not there:
        return Answer(None, f"{folder} is empty or not there", needed, fix)
    for_chips = [name for name in there if name.startswith("ascend")]
    return Answer(chip in there, f"kernels for {', '.join(for_chips) or 'no chip'}", needed, fix)


CHECK = Check("operator-kernels", "error", look)
