"""The network ports of the NPUs, as `hccn_tool` tells them."""

from collections.abc import Mapping

from tunan.ascend.probes.hccn import parse_link
from tunan.ascend.probes.sight import Sight


def look_at_links(sight: Sight, count: int) -> Mapping[int, bool]:
    """Whether the port of each of `count` devices is up, by the device's place in the list, which
    is how `hccn_tool` counts. A port that is not told is left out; after a tool that does not
    run, hangs or was ended, no further one is asked.
    """
    links: dict[int, bool] = {}
    for place in range(count):
        ran = sight.run("hccn_tool", "-i", str(place), "-link", "-g")
        if ran.error or (ran.status or 0) < 0:
            break
        if (up := parse_link(ran.output).value) is not None:
            links[place] = up
    return links
