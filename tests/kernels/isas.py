"""The instruction sets of this CPU, for tests that run with each of them or with one."""

import pytest

from tunan import kernels

ISAS = kernels.supported_isas() if kernels.available() else ["none"]

# Of a test in a file whose tests run in every set: what it looks at is the same in all of them.
in_one_isa = pytest.mark.parametrize("isa", ISAS[-1:], indirect=True)
