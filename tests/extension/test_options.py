from __future__ import annotations

import pytest

from extension.hosts.standalone import StandaloneHost
from extension.options import (
    DEFAULT_MULTIPLIER,
    FAIL,
    HASHES,
    ON_BAD_LORA,
    SKIP,
    TABLE,
    checked,
    default_multiplier,
    hashes_wanted,
    skip_bad,
)


@pytest.fixture
def host() -> StandaloneHost:
    host = StandaloneHost()
    host.open([], {})
    host.add_options(TABLE)
    return host


def test_keys_are_unique_and_have_one_prefix() -> None:
    keys = [option.key for option in TABLE]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("remora_") for key in keys)
    assert all(not option.choices or option.default in option.choices for option in TABLE)


def test_settings_are_read_from_the_host(host: StandaloneHost) -> None:
    assert (skip_bad(host), default_multiplier(host), hashes_wanted(host)) == (True, 1.0, True)
    host.set_option(ON_BAD_LORA, FAIL)
    host.set_option(DEFAULT_MULTIPLIER, "0.5")  # some hosts hand back text
    host.set_option(HASHES, False)
    assert (skip_bad(host), default_multiplier(host), hashes_wanted(host)) == (False, 0.5, False)


@pytest.mark.parametrize(("key", "value"), [(ON_BAD_LORA, SKIP), (DEFAULT_MULTIPLIER, 2), (HASHES, False)])
def test_a_good_value_is_taken(key: str, value: object) -> None:
    assert checked(key, value) == value


@pytest.mark.parametrize(("key", "value"), [(ON_BAD_LORA, "x"), (DEFAULT_MULTIPLIER, True), (HASHES, 1)])
def test_a_bad_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        checked(key, value)
