import pytest

from tunan.engine.cpu.process import bound_cpus
from tunan.engine.cpu.switch import Switch
from tunan.errors import UsageError

ALL, NONE = Switch(True, True, True), Switch(False, False, False)
WITH_HEAD = Switch(True, True, True, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ALL),
        ("", ALL),
        ("1", ALL),
        ("0", NONE),
        ("linear", Switch(True, False, False)),
        (" attention, linear ", Switch(True, True, False)),
        ("linear,attention,fused", ALL),
        ("linear,attention,fused,head", WITH_HEAD),
    ],
)
def test_the_variable_chooses_the_kernels(value: str | None, expected: Switch) -> None:
    environment = {} if value is None else {"TUNAN_CPU_KERNELS": value}
    assert Switch.from_environment(environment) == expected


@pytest.mark.parametrize("value", ["2", "yes", "linear,kv", "0,linear"])
def test_another_value_is_refused_with_those_that_there_are(value: str) -> None:
    with pytest.raises(UsageError, match=r"give 1 \(the default\), 0 \(none\) or some of linear"):
        Switch.from_environment({"TUNAN_CPU_KERNELS": value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fused,linear", "fused needs linear and attention too"),
        ("linear,attention,head", "head needs fused too"),
    ],
)
def test_a_part_needs_those_it_builds_on(value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Switch.from_environment({"TUNAN_CPU_KERNELS": value})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,6]"}, (4, 6)),
        ({"GOMP_CPU_AFFINITY": "0 1"}, (0, 1)),
        ({"KMP_AFFINITY": "none"}, None),
        ({"GOMP_CPU_AFFINITY": "0-3"}, None),
        ({"GOMP_CPU_AFFINITY": "0 1 2"}, None),
        ({"OMP_PLACES": "{0,1}", "OMP_PROC_BIND": "true"}, None),
        ({}, None),
    ],
)
def test_threads_are_bound_as_vllm_binds_its_own(
    environment: dict[str, str], expected: tuple[int, ...] | None
) -> None:
    assert bound_cpus(2, environment) == expected
