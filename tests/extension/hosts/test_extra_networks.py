"""`<lora:...>` taken over in the registries of A1111 and of SD.Next, and given back."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from extension.hosts._extra_networks import ExtraNetworks, ImageTags, of_others
from extension.hosts._prompt_tags import PromptTags
from tests.fakes.webui import extra_networks as fakes


class Taken:
    """A host's module whose tags are Remora's, and what Remora is told."""

    def __init__(self, module: ModuleType, builtin: fakes.Builtin) -> None:
        self.module, self.builtin = module, builtin
        self.module.register_extra_network(builtin)
        if hasattr(module, "extra_network_aliases"):
            module.register_extra_network_alias(builtin, "lyco")
        self.untouched = dict(vars(module))
        self.batches: list[tuple[tuple[str, ...], ...]] = []
        self.excluded: list[list[str]] = []
        self.ends: list[Any] = []
        self.enabled = True
        self.failing: BaseException | None = None
        self.unserved: list[str] = []
        self.networks = ExtraNetworks(
            module,
            batch=self.batch,
            handed_back=lambda p: not self.enabled,
            ended=self.ends.append,
            not_applied=lambda p, images, failure: self.unserved.extend(filter(None, [failure])),
        )
        self.networks.take_over()

    def batch(self, p: Any, images: tuple[tuple[str, ...], ...], include: Any, exclude: Any) -> None:
        if self.failing is not None:
            raise self.failing
        self.batches.append(images)
        self.excluded.append(list(exclude))

    def generate(self, *prompts: str, **more: Any) -> Any:
        p = fakes.processing(**more)
        p.prompts, p.network_data = self.module.parse_prompts(list(prompts))
        self.module.activate(p, p.network_data)
        return p

    def end(self, p: Any) -> None:
        """End a generation, as the host does behind a detailer."""
        forced = {"force": True} if "force" in inspect.signature(self.untouched["deactivate"]).parameters else {}
        self.module.deactivate(p, p.network_data, **forced)


MAKERS: dict[str, Callable[[], Taken]] = {
    "a1111": lambda: Taken(fakes.a1111(), fakes.Builtin()),
    "sdnext": lambda: Taken(fakes.sdnext({}), fakes.BuiltinOfSdNext()),
}


@pytest.fixture(params=MAKERS)
def taken(request: pytest.FixtureRequest) -> Taken:
    return MAKERS[request.param]()


def test_remora_serves_the_tags_of_every_image_and_the_builtin_none(taken: Taken) -> None:
    p = taken.generate("a cat<lora:a:0.8>", "a dog", "<lyco:b:1:0.5>x<lora:c:te=1>")
    assert p.prompts == ["a cat", "a dog", "x"]
    assert [set(image) for image in taken.batches[0]] == [{"a:0.8"}, set(), {"b:1:0.5", "c:te=1"}]
    assert taken.builtin.calls == []


def test_without_tags_all_is_switched_off(taken: Taken) -> None:
    taken.generate("a cat<lora:a:1>")
    taken.generate("a cat")
    assert taken.batches == [(("a:1",),), ((),)]


def test_what_the_host_returns_is_the_same_but_for_one_attribute(taken: Taken) -> None:
    prompts = ["x<lora:a:1><hypernet:h:1>", "y<lora:b:1>"]
    texts, tags = taken.module.parse_prompts(prompts)
    plain_texts, plain = taken.untouched["parse_prompts"](prompts)
    assert texts == plain_texts
    assert {kind: [params.items for params in found] for kind, found in tags.items()} == {
        kind: [params.items for params in found] for kind, found in plain.items()
    }
    assert tags["no such kind"] == []  # it is a defaultdict there, and some rely on it
    for copied in (copy.copy(tags), tags.copy(), copy.deepcopy(tags)):
        assert copied.images == tags.images
        assert copied.keys() == tags.keys()
    assert pickle.loads(pickle.dumps(ImageTags.of({}, (("a",),)))).images == (("a",),)


def test_sdnext_looks_a_second_time_at_prompts_that_have_lost_their_tags() -> None:
    taken = MAKERS["sdnext"]()
    p = fakes.processing()
    p.prompts, p.network_data = taken.module.parse_prompts(["x<lora:a:1>", "y"])
    p.prompts, p.network_data = taken.module.parse_prompts(p.prompts, p.network_data)
    taken.module.activate_filtered(p)
    assert taken.batches == [(("a:1",), ())]


def test_sdnext_says_which_components_to_leave_alone() -> None:
    taken = MAKERS["sdnext"]()
    p = fakes.processing()
    p.prompts, p.network_data = taken.module.parse_prompts(["x<lora:a:1>"])
    p.lora_apply_te = False
    taken.module.activate_filtered(p)
    assert taken.excluded == [["text_encoder", "text_encoder_2", "text_encoder_3"]]
    p.lora_apply_te = True
    taken.module.activate_filtered(p)
    assert taken.excluded[1] == []


def test_others_may_activate_with_tags_of_their_own_making(taken: Taken) -> None:
    taken.module.activate(fakes.processing(), {"lora": [fakes.ExtraNetworkParams(["a", "0.5"])]})
    assert taken.batches == [(("a:0.5",),)]
    taken.module.extra_network_registry["lora"].activate(fakes.processing(), [fakes.ExtraNetworkParams(["b"])])
    assert taken.batches[1] == (("b",),)


def test_a_failure_reaches_whoever_makes_pictures(taken: Taken) -> None:
    taken.failing = ValueError("no such LoRA")
    with pytest.raises(ValueError, match="no such LoRA"):
        taken.generate("x<lora:a:1>")
    assert taken.module.shown == []  # and is not printed besides
    with pytest.raises(ValueError, match="no such LoRA"):
        taken.module.extra_network_registry["lora"].activate(fakes.processing(), [])
    taken.failing = None
    taken.generate("x<lora:a:1>")
    assert len(taken.batches) == 1


def test_the_setting_hands_the_tags_to_the_builtin_and_takes_them_again(taken: Taken) -> None:
    taken.enabled = False
    p = taken.generate("x<lora:a:0.8>")
    assert (taken.builtin.calls, taken.batches) == ([["a:0.8"]], [])
    taken.module.deactivate(p, p.network_data)
    assert (taken.builtin.deactivated, taken.ends) == (1, [])
    taken.enabled = True
    p = taken.generate("x<lora:b:1>")
    taken.end(p)
    assert (len(taken.builtin.calls), taken.batches, taken.ends) == (1, [(("b:1",),)], [p])


def test_sdnext_goes_on_with_the_picture_unless_it_says_that_it_ends() -> None:
    taken = MAKERS["sdnext"]()
    p = taken.generate("x<lora:a:1>")
    taken.module.deactivate(p, p.network_data)  # its detailer comes now
    assert taken.ends == []
    taken.end(p)
    assert taken.ends == [p]


def test_the_builtin_is_told_what_to_leave_alone_when_it_serves() -> None:
    taken = MAKERS["sdnext"]()
    taken.enabled = False
    p = fakes.processing()
    p.lora_apply_te = False
    p.prompts, p.network_data = taken.module.parse_prompts(["x<lora:a:1>"])
    taken.module.activate_filtered(p)
    assert isinstance(taken.builtin, fakes.BuiltinOfSdNext)
    assert taken.builtin.excluded == [["text_encoder", "text_encoder_2", "text_encoder_3"]]
    assert taken.module.shown == []


def test_given_back_the_module_is_as_it_was(taken: Taken) -> None:
    taken.networks.take_over()  # twice, as when an application starts after the page was made
    taken.networks.give_back()
    assert dict(vars(taken.module)) == taken.untouched
    assert taken.module.extra_network_registry == {"lora": taken.builtin}
    if hasattr(taken.module, "extra_network_aliases"):
        assert taken.module.extra_network_aliases == {"lyco": taken.builtin}
    taken.generate("x<lora:a:1>")
    assert (taken.builtin.calls, taken.batches) == ([["a:1"]], [])
    taken.networks.give_back()
    taken.networks.take_over()
    taken.generate("x<lora:a:1>")
    assert len(taken.batches) == 1


def test_what_another_extension_wrapped_around_ours_stays_and_passes_on(taken: Taken) -> None:
    ours = taken.module.parse_prompts
    seen = []

    def theirs(prompts: list[str], *args: Any) -> Any:
        seen.append(prompts)
        return ours(prompts, *args)

    taken.module.parse_prompts = theirs
    taken.networks.give_back()
    assert taken.module.parse_prompts is theirs
    assert not isinstance(taken.module.parse_prompts(["x<lora:a:1>"])[1], ImageTags)
    assert len(seen) == 1


def test_a_registry_that_was_cleared_and_filled_anew_is_taken_again(taken: Taken) -> None:
    """A1111 clears it after scripts are loaded, and the built-in registers after every other."""
    taken.module.initialize()
    another = fakes.Builtin()
    taken.module.register_extra_network(another)
    taken.networks.take_over()
    taken.generate("x<lora:a:1>")
    assert (another.calls, len(taken.batches)) == ([], 1)
    taken.networks.give_back()
    assert taken.module.extra_network_registry["lora"] is another


def test_tags_of_a_kind_that_another_extension_serves_are_its_own(taken: Taken) -> None:
    """As a1111-sd-webui-lycoris does for `<lyco:...>`; they would act twice."""
    theirs = type(taken.builtin)()
    taken.module.extra_network_registry["lyco"] = theirs
    p = taken.generate("x<lora:a:1><lyco:b:1>")
    assert taken.batches == [(("a:1",),)]
    assert theirs.calls == [["b:1"]]
    assert of_others(p.network_data).keys() == {"lyco"}
    del taken.module.extra_network_registry["lyco"]
    p = taken.generate("x<lora:a:1><lyco:b:1>")
    assert taken.batches[1] == (("a:1", "b:1"),)
    assert of_others(p.network_data) == {}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_host_without_a_builtin(taken: Taken, enabled: bool) -> None:
    taken.networks.give_back()
    taken.module.initialize()
    networks = ExtraNetworks(
        taken.module, batch=taken.batch, handed_back=lambda p: not enabled, ended=taken.ends.append
    )
    networks.take_over()
    taken.generate("x<lora:a:1>")
    assert len(taken.batches) == enabled  # handed back to nobody: nobody serves
    networks.give_back()
    assert taken.module.extra_network_registry == {}


# --- others that register a handler of their own ---


@pytest.fixture
def loractl(taken: Taken) -> fakes.Loractl:
    return fakes.Loractl(taken.module, type(taken.builtin))


def test_a_handler_that_replaced_remora_is_replaced_and_named_once(
    taken: Taken, loractl: fakes.Loractl, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        loractl.process(None)
        assert taken.module.extra_network_registry["lora"] is not taken.networks.network
        taken.generate(f"x<lora:a:{number}>")
    assert taken.batches == [((f"a:{number}",),) for number in range(3)]
    assert (loractl.active, taken.builtin.calls) == ([], [])
    (sentence,) = taken.networks.conflicts
    assert "sd-webui-loractl" in sentence
    assert [record.getMessage() for record in caplog.records] == [f"remora: {sentence}"]


@pytest.fixture
def taken_without_file(taken: Taken) -> type[Any]:
    return type("Handler", (type(taken.builtin),), {"__module__": "some_script"})


def test_a_handler_without_a_file_is_named_by_its_module(taken: Taken, taken_without_file: type[Any]) -> None:
    taken.module.register_extra_network(taken_without_file())
    taken.generate("x<lora:a:1>")
    (sentence,) = taken.networks.conflicts
    assert "some_script" in sentence
    assert len(taken.batches) == 1


def test_the_builtin_that_registers_again_is_no_conflict(taken: Taken) -> None:
    taken.module.register_extra_network(type(taken.builtin)())
    taken.generate("x<lora:a:1>")
    assert (len(taken.batches), taken.networks.conflicts) == (1, ())


def test_while_remora_is_off_the_other_handler_applies_the_tags(taken: Taken, loractl: fakes.Loractl) -> None:
    loractl.process(None)
    taken.generate("x<lora:a:1>")
    taken.enabled = False
    taken.generate("x<lora:b:1>")  # Remora's object is registered, and passes on to the other one
    loractl.process(None)
    taken.generate("x<lora:c:1>")  # the other one is registered
    assert loractl.active == [["b"], ["c"]]
    assert len(taken.batches) == 1
    taken.enabled = True
    taken.generate("x<lora:d:1>")
    assert taken.batches[1] == (("d:1",),)


def test_remora_hears_that_it_is_off_while_another_handler_is_registered() -> None:
    """The built-in must be able to work again, which only the host does that is asked."""
    taken = MAKERS["a1111"]()
    asked: list[Any] = []
    taken.networks._handed_back = lambda p: bool(asked.append(p)) or True
    loractl = fakes.Loractl(taken.module, fakes.Builtin)
    loractl.process(None)
    p = taken.generate("x<lora:a:1>")
    assert asked == [p]
    assert loractl.active == [["a"]]


def test_a_handler_that_calls_the_one_it_replaced_does_not_call_remora_for_ever(taken: Taken) -> None:
    class Around(type(taken.builtin)):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def activate(self, p: Any, params_list: Any, **said: Any) -> None:
            self.calls.append([params.items[0] for params in params_list])
            self.inner.activate(p, params_list)

    around = Around(taken.networks.network)
    taken.module.register_extra_network(around)
    taken.generate("x<lora:a:1>")
    taken.enabled = False
    taken.generate("x<lora:b:1>")
    assert (around.calls, taken.builtin.calls) == ([["b"]], [["b:1"]])
    assert taken.module.shown == []


def test_an_object_given_back_passes_on_what_still_calls_it(taken: Taken) -> None:
    taken.networks.give_back()
    taken.module.register_extra_network(taken.networks.network)  # as loractl does with what it found
    taken.generate("x<lora:a:1>")
    assert (taken.builtin.calls, taken.batches) == ([["a:1"]], [])


def test_tags_that_nothing_applied_are_reported(taken: Taken) -> None:
    taken.networks.network.activate = lambda p, params, **said: None  # another extension's patch of the object
    taken.generate("x<lora:a:1>", "y<lora:b:1>")
    taken.generate("x")
    assert taken.unserved == [
        "nothing applied <lora:a:1> <lora:b:1>: the web UI did not call Remora, which is registered"
    ]


def test_tags_without_any_handler_are_reported(taken: Taken) -> None:
    taken.networks._others.clear()
    taken.enabled = False
    taken.generate("x<lora:a:1>")
    taken.generate("x")
    assert taken.unserved == ["nothing applied <lora:a:1>: the web UI has no LoRA of its own"]


def test_a_batch_that_goes_past_the_hosts_function_is_known(taken: Taken) -> None:
    p = fakes.processing()
    p.prompts, p.network_data = taken.module.parse_prompts(["x<lora:a:1>"])
    taken.networks.check_served(p)
    taken.networks.check_served(p)
    skipped = "nothing applied <lora:a:1>: something makes the web UI skip its extra networks"
    assert taken.unserved == [skipped], "said once"
    taken.networks.check_served(taken.generate("x<lora:a:1>"))
    untagged = fakes.processing()
    untagged.network_data = taken.module.parse_prompts(["x"])[1]
    taken.networks.check_served(untagged)
    assert taken.unserved == [skipped]


def test_a_region_that_names_its_part_keeps_it() -> None:
    tags = PromptTags(fakes.a1111(), lambda kind: True, lambda: False, has_parts=True)
    assert tags.of("a AND b <lora:x:1:mask=left>") == ("x:1:mask=left:part=2",)
    assert tags.of("a AND b <lora:x:1:mask=left: part = 1>") == ("x:1:mask=left: part = 1",)
