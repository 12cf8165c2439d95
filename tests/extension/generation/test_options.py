from __future__ import annotations

import math

import pytest

from extension.generation import options
from extension.generation.options import (
    ALWAYS,
    CACHE,
    DEFAULT_MULTIPLIER,
    DEVICE_BUDGET,
    DYLORA,
    FAIL,
    HASHES,
    IN_ORDER,
    MERGE,
    NEVER,
    ON_BAD_LORA,
    READY,
    SKIP,
    SPLIT_QKV,
    STORAGE,
    TABLE,
    Overridden,
    checked,
    default_multiplier,
    from_parameters,
    hashes_wanted,
    skip_bad,
    to_parameters,
)
from extension.generation.request import Memory, Settings
from extension.hosts.standalone import StandaloneHost
from lib_lora import Reading
from tests.covering import some_of

MB = 1024 * 1024


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


def test_every_default_is_a_good_value_of_its_type() -> None:
    for option in TABLE:
        assert checked(option.key, option.default) == option.default
        assert type(checked(option.key, option.default)) is type(option.default)


def test_settings_are_read_from_the_host(host: StandaloneHost) -> None:
    assert (skip_bad(host), default_multiplier(host), hashes_wanted(host)) == (True, 1.0, True)
    host.set_option(ON_BAD_LORA, FAIL)
    host.set_option(DEFAULT_MULTIPLIER, "0.5")  # some hosts hand back text
    host.set_option(HASHES, False)
    assert (skip_bad(host), default_multiplier(host), hashes_wanted(host)) == (False, 0.5, False)


def test_the_defaults_are_live_unordered_and_unlimited(host: StandaloneHost) -> None:
    assert options.settings(host) == Settings(True, "live", False, Memory("file", None, 4096 * MB))


@pytest.mark.parametrize(
    ("key", "reading"),
    [(SPLIT_QKV, Reading(split_qkv_as_trained=True)), (DYLORA, Reading(dylora_as_trained=True))],
)
def test_files_are_read_as_elsewhere_unless_the_user_wants_them_as_trained(
    host: StandaloneHost, key: str, reading: Reading
) -> None:
    assert options.settings(host).reading == Reading()
    host.set_option(key, True)
    assert options.settings(host).reading == reading


@pytest.mark.parametrize(("value", "mode"), [(NEVER, "live"), (ALWAYS, "merged")])
def test_merging_in_the_librarys_words(host: StandaloneHost, value: str, mode: str) -> None:
    host.set_option(MERGE, value)
    assert options.settings(host).mode == mode


def test_memory_is_in_bytes_and_no_budget_is_no_limit(host: StandaloneHost) -> None:
    host.set_option(STORAGE, "float8")
    host.set_option(DEVICE_BUDGET, "512")
    host.set_option(CACHE, 0)
    host.set_option(IN_ORDER, True)
    host.set_option(READY, 3)
    assert options.settings(host) == Settings(True, "live", True, Memory("float8", 512 * MB, 0, ready_bytes=3 * MB))
    host.set_option(DEVICE_BUDGET, 0)
    assert options.memory(host).device_budget is None


@pytest.mark.parametrize(
    ("key", "value"), [(MERGE, "sometimes"), (STORAGE, "int3"), (CACHE, "lots"), (DEVICE_BUDGET, -1)]
)
def test_a_host_that_holds_a_bad_value_is_told_which(host: StandaloneHost, key: str, value: object) -> None:
    host.set_option(key, value)
    with pytest.raises(ValueError, match=f"{key} must be"):
        options.settings(host)


def test_a_strength_of_inserted_lora_that_a_former_version_took_is_the_nearest_valid_one(host: StandaloneHost) -> None:
    for kept, used in ((-5, 0.0), ("3", 2.0), (0.5, 0.5)):
        host.set_option(DEFAULT_MULTIPLIER, kept)
        assert default_multiplier(host) == used
    host.set_option(DEFAULT_MULTIPLIER, "much")
    with pytest.raises(ValueError, match=DEFAULT_MULTIPLIER):
        default_multiplier(host)


def test_one_generation_may_have_settings_of_its_own(host: StandaloneHost) -> None:
    own = Overridden(host, {MERGE: ALWAYS, ON_BAD_LORA: FAIL})
    assert options.settings(own) == Settings(False, "merged", False, options.memory(host))
    assert options.settings(host).mode == "live"


@pytest.mark.parametrize(
    ("key", "value"),
    [(ON_BAD_LORA, SKIP), (DEFAULT_MULTIPLIER, 2), (HASHES, False), (CACHE, 7.0), (MERGE, ALWAYS), (DEVICE_BUDGET, 0)],
)
def test_a_good_value_is_taken(key: str, value: object) -> None:
    assert checked(key, value) == value


def test_numbers_become_what_the_setting_is() -> None:
    assert type(checked(DEFAULT_MULTIPLIER, 2)) is float
    assert type(checked(CACHE, 7.0)) is int


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        (ON_BAD_LORA, "x", f"one of: {SKIP}, {FAIL}, not 'x'"),
        (ON_BAD_LORA, ["x"], "one of"),
        (DEFAULT_MULTIPLIER, True, "a number from 0 to 2, not True"),
        (DEFAULT_MULTIPLIER, math.nan, "a number from 0 to 2, not nan"),
        (DEFAULT_MULTIPLIER, None, "a number from 0 to 2, not None"),
        (DEFAULT_MULTIPLIER, -5, "a number from 0 to 2, not -5"),
        (DEFAULT_MULTIPLIER, 2.5, "a number from 0 to 2, not 2.5"),
        (HASHES, 1, "true or false, not 1"),
        (CACHE, 1.5, "a whole number from 0 to 1048576, not 1.5"),
        (CACHE, math.inf, "a whole number"),
        (DEVICE_BUDGET, -1, "a whole number from 0"),
        (DEVICE_BUDGET, 1 << 21, "a whole number from 0"),
        (DEVICE_BUDGET, False, "a whole number from 0"),
        (MERGE, "live", "one of: never, always, not 'live'"),
        (STORAGE, "int3", "one of: file, bfloat16, float8, not 'int3'"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_wanted(key: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=key) as caught:
        checked(key, value)
    assert f"{key} must be {wanted}" in str(caught.value)


def test_an_unknown_setting_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        checked("remora_no_such", 1)


def test_what_changes_a_picture_is_in_its_parameters_where_it_is_not_the_default(host: StandaloneHost) -> None:
    assert to_parameters(host) == {}
    host.set_option(IN_ORDER, True)
    assert to_parameters(host) == {"Remora stacking": "in order"}
    host.set_option(MERGE, ALWAYS)
    host.set_option(STORAGE, "float8")
    assert to_parameters(host) == {
        "Remora mode": "merged",
        "Remora stacking": "in order",
        "Remora storage": "float8",
    }


@some_of(
    ("merge", "storage", "order", "split", "dylora"),
    [NEVER, ALWAYS],
    ["file", "bfloat16", "float8"],
    [False, True],
    [pytest.param(False, False), pytest.param(True, False), pytest.param(False, True)],
)
def test_parameters_say_how_it_was_set(
    host: StandaloneHost, merge: str, storage: str, order: bool, split: bool, dylora: bool
) -> None:
    own = Overridden(host, {MERGE: merge, STORAGE: storage, IN_ORDER: order, SPLIT_QKV: split, DYLORA: dylora})
    again = Overridden(host, from_parameters(to_parameters(own)))
    assert options.settings(again) == options.settings(own)


def test_the_mode_that_was_removed_is_live_wherever_it_is_still_named(host: StandaloneHost) -> None:
    assert checked(MERGE, "when it pays") == NEVER
    own = Overridden(host, {MERGE: "when it pays"})
    assert options.settings(own).mode == "live"
    assert to_parameters(own) == {}
    host.set_option(MERGE, ALWAYS)
    pasted = Overridden(host, from_parameters({"Remora mode": "auto", "Remora kernels": "own"}))
    assert options.settings(pasted).mode == "live", "as the picture was made, whatever is set now"


def test_parameters_of_others_say_nothing() -> None:
    assert from_parameters({"Steps": "20", "Remora mode": "sideways"}) == {}
