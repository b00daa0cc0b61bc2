"""The errors in the NPUs' memory, as `npu-smi` tells them where `libdcmi.so` does not."""

from collections.abc import Mapping

from tunan.ascend.probes.npu import NpuReport
from tunan.ascend.probes.npu_smi_fields import Ecc
from tunan.ascend.probes.npus import look_at_ecc
from tunan.ascend.probes.sight import Sight


def look_at_ecc_counts(sight: Sight, report: NpuReport) -> Mapping[int, Ecc]:
    """The counts of each device by its place in the report. After one that tells none no further
    one is asked: a tool that hangs would hang for each.
    """
    counts: dict[int, Ecc] = {}
    for place, device in enumerate(report.devices):
        ecc = look_at_ecc(sight, device).value
        if ecc is None:
            break
        counts[place] = ecc
    return counts
