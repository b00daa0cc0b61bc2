import pytest

from tunan.engine.options import LoadOptions
from tunan.errors import UsageError


def test_without_options_blocks_read_whole_are_hashed() -> None:
    assert LoadOptions.parse({}).verify == "auto"


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(UsageError, match="unknown key 'verfy'; did you mean 'verify'"):
        LoadOptions.parse({"verfy": "full"})


def test_an_unknown_value_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(UsageError, match="verify is 'maybe'; one of auto, full, header"):
        LoadOptions.parse({"verify": "maybe"})
