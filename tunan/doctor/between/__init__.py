"""The checks between several machines, in the order in which they are shown."""

from tunan.doctor.between import (
    clock_skew,
    engine_ports,
    names,
    npu_ping,
    roce_subnet,
    same_chip,
    same_driver,
    same_mtu,
    same_packages,
    same_tls,
    same_toolkit,
)

CHECKS = tuple(
    module.CHECK
    for module in (
        same_chip,
        same_driver,
        same_toolkit,
        same_packages,
        clock_skew,
        names,
        engine_ports,
        same_tls,
        same_mtu,
        roce_subnet,
        npu_ping,
    )
)
