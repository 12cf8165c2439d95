from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from extension.library import walk
from extension.library.catalog import Catalog, CatalogError, Lookup
from extension.library.facts import Facts, FactsReader
from extension.library.hashes import hash_from
from lib_lora import PickleError
from lib_lora.files.file import AdapterFile


def put(path: Path, alias: str = "", value: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"x": torch.tensor([float(value)])}, path, metadata={"ss_output_name": alias} if alias else {})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loras").mkdir()
    return tmp_path / "loras"


def catalog(*folders: Path) -> Catalog:
    return Catalog(lambda: folders)


def test_a_name_is_the_file_name_then_the_path_then_the_alias_then_the_hash(folder: Path) -> None:
    a = put(folder / "sub" / "a.v1 [XL].safetensors", alias="b", value=1)
    b = put(folder / "b.safetensors", alias="c", value=2)
    found = catalog(folder)
    assert found.find("a.v1 [XL]").path == a
    assert found.find("a.v1 [XL].safetensors").path == a
    assert found.find("sub/a.v1 [XL]").path == a
    assert found.find("sub\\a.v1 [XL]").path == a
    assert found.find("b").path == b  # its file name beats a's alias
    assert found.find("c").path == b
    digest = hashlib.sha256(torch.tensor([1.0]).numpy().tobytes()).hexdigest()
    assert found.hashes.short(found.find("a.v1 [XL]")) == digest[:12]
    assert found.find(digest[:12]).path == a
    assert found.find(digest[:10].upper()).path == a


def test_a_folder_of_a_peft_adapter_is_its_name(folder: Path) -> None:
    files = [
        put(folder / name / "adapter_model.safetensors", value=at) for at, name in enumerate(("fur", "a/wet", "b/wet"))
    ]
    top = put(folder / "rain.safetensors", value=5)
    rain = put(folder / "rain" / "pytorch_lora_weights.safetensors", value=6)
    loose = put(folder / "adapter_model.safetensors", value=7)
    found = catalog(folder)
    names = {found.names.name_of(file): file.path for file in found.files}
    assert names == {
        "fur": files[0],
        "a/wet/adapter_model": files[1],
        "b/wet/adapter_model": files[2],
        "rain": top,
        "rain/pytorch_lora_weights": rain,
        "adapter_model": loose,
    }
    for name, path in {**names, "fur/adapter_model": files[0], "a/wet": files[1], "b/wet": files[2]}.items():
        assert found.find(name).path == path, name
    with pytest.raises(CatalogError, match="fits several files"):
        found.find("wet")


@pytest.mark.parametrize("count", [3, 60])
def test_a_list_leaves_many_files_to_the_thread(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Else it waits as long as the first file takes, which imports every format."""
    for number in range(count):
        put(folder / f"{number}.safetensors")
    readers, go_on = set(), threading.Event()
    read = FactsReader.read

    def slow(self: FactsReader, path: Path) -> Facts:
        reader = threading.current_thread().name
        readers.add(reader)
        assert reader != "remora-scan" or go_on.wait(10)
        return read(self, path)

    monkeypatch.setattr(FactsReader, "read", slow)
    found = catalog(folder)
    found.refresh()
    found.start()
    found.read_for(0.05)
    rows = found.index.rows()
    go_on.set()
    assert found.wait(10)
    found.close()
    found.read_for(0.05)
    assert "remora-scan" not in [one.name for one in threading.enumerate()], "a late request starts no thread"
    assert len(rows) == count
    if count > 50:
        assert readers == {"remora-scan"}
    else:
        assert all(row.complete for row in rows), "few are read at once, though the thread is busy"


def test_a_name_two_files_share_must_be_told_apart(folder: Path) -> None:
    one, two = put(folder / "x" / "a.safetensors"), put(folder / "y" / "a.safetensors", value=1)
    found = catalog(folder)
    with pytest.raises(CatalogError, match="several files: x/a, y/a") as caught:
        found.find("a")
    assert [found.find(name).path for name in caught.value.candidates] == [one, two]
    assert found.names.all() == ["x/a", "y/a"]


def test_of_files_with_the_same_bytes_any_is_taken_without_a_word(folder: Path) -> None:
    one, two = put(folder / "x" / "a.safetensors"), put(folder / "y" / "a.safetensors")
    put(folder / "A.safetensors", value=1)
    found = catalog(folder)
    assert found.find("a").path in (one, two)
    assert found.names.note_on("a") == ""
    assert Catalog(lambda: [folder], choice=lambda paths: two).find("a").path == two


def test_files_that_cannot_be_hashed_are_not_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "x" / "a.safetensors")
    put(folder / "y" / "a.safetensors", value=1)
    found = catalog(folder)

    def fail(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("extension.library.hashes.hash_from", fail)
    with pytest.raises(CatalogError, match="several files: x/a, y/a"):
        found.find("a")


def test_of_different_files_of_one_name_the_hosts_choice_is_taken_and_said(folder: Path) -> None:
    top, one = put(folder / "a.safetensors"), put(folder / "x" / "a.safetensors", value=1)
    two = put(folder / "y" / "a.safetensors", value=2)
    found = Catalog(lambda: [folder], choice=lambda paths: max(paths, key=str))
    assert found.find("a").path == two
    assert found.names.note_on("a").startswith(
        "a fits several files, a, x/a, y/a: y/a is applied, which the web UI's own"
    )
    # every file has a name of its own, and none of them has a note
    assert {found.find(name).path for name in found.names.all()} == {top, one, two}
    assert found.names.all() == ["a.safetensors", "x/a", "y/a"]
    assert not any(map(found.names.note_on, found.names.all()))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("upper", "UPPER"),
        ("LoRA.V2", "lora.v2"),
        ("lora_v2", "lora.v2"),  # as SD.Next names it
        ("cafe\u0301", "caf\u00e9"),
        ("CAF\u00c9", "caf\u00e9"),
        ("na\u00efve", "nai\u0308ve"),  # as macOS may store it
        ("NA\u00cfVE.safetensors", "nai\u0308ve"),
        ("\u00e9t\u00e9/na\u00eff", "e\u0301te\u0301/nai\u0308f"),
        ("Styles\\Zorp", "styles/zorp"),
        ("ZORP.safetensors", "styles/zorp"),
        ("re: zorp", "re: zorp"),
        ("stra\u00dfe", "STRASSE"),
    ],
)
def test_a_name_in_another_spelling_finds_the_only_file_that_fits(folder: Path, name: str, file: str) -> None:
    for number, one in enumerate(
        (
            *("UPPER", "lora.v2", "cafe\u0301x", "caf\u00e9", "nai\u0308ve", "e\u0301te\u0301/nai\u0308f"),
            *("styles/zorp", "re: zorp", "STRASSE"),
        )
    ):
        put(folder / f"{one}.safetensors", value=number)
    assert catalog(folder).find(name).path == folder / f"{file}.safetensors"


def test_a_name_in_another_spelling_that_fits_two_files_has_both_as_candidates(folder: Path) -> None:
    put(folder / "Fur.safetensors"), put(folder / "FUR.safetensors", value=1)
    with pytest.raises(CatalogError, match="several files: FUR, Fur; write one of these") as caught:
        Catalog(lambda: [folder], choice=lambda paths: paths[0]).find("fur")
    assert caught.value.fits_several
    put(folder / "other" / "night.safetensors")
    with pytest.raises(CatalogError, match="did you mean night") as caught:
        catalog(folder).find("styles\\Night")
    assert caught.value.candidates == ("night",)


def test_of_two_files_of_one_name_the_one_at_the_top_has_no_longer_name(folder: Path) -> None:
    top = put(folder / "a.safetensors")
    put(folder / "x" / "a.safetensors")
    assert catalog(folder).find("a").path == top


def test_of_two_folders_with_the_same_file_the_first_wins_and_the_other_has_its_folder_in_front(tmp_path: Path) -> None:
    first, second = put(tmp_path / "1" / "x" / "a.safetensors"), put(tmp_path / "2" / "x" / "a.safetensors", value=1)
    third = put(tmp_path / "more" / "2" / "x" / "a.safetensors")
    found = catalog(tmp_path / "1", tmp_path / "2", tmp_path / "more" / "2")
    names = {name: found.find(name).path for name in found.names.all()}
    assert names == {"x/a": first, "2/x/a": second, "more/2/x/a": third}
    with pytest.raises(CatalogError, match=r"several files: x/a, 2/x/a, more/2/x/a; write one of these") as caught:
        found.find("a")
    assert [found.find(name).path for name in caught.value.candidates] == [first, second, third]


def test_every_name_that_is_advised_where_several_files_fit_finds_one(tmp_path: Path) -> None:
    put(tmp_path / "1" / "a.safetensors"), put(tmp_path / "2" / "a.safetensors"), put(tmp_path / "1" / "b.safetensors")
    (tmp_path / "1" / "old.pt").write_bytes(b""), (tmp_path / "1" / "old.ckpt").write_bytes(b"")
    found = catalog(tmp_path / "1", tmp_path / "2")
    assert found.find("a").path == tmp_path / "1" / "a.safetensors"
    with pytest.raises(CatalogError, match="several files") as caught:
        found.find("old")
    assert [found.find(name).path.name for name in caught.value.candidates] == list(caught.value.candidates)


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "..\\secret", "/etc/passwd", "C:\\secret", "C:secret"])
def test_a_name_never_leaves_the_folders(folder: Path, name: str) -> None:
    put(folder.parent / "secret.safetensors")
    with pytest.raises(CatalogError, match="is outside the LoRA folders"):
        catalog(folder).find(name)


def test_an_absolute_path_means_a_file_of_the_folders_and_no_other(folder: Path) -> None:
    """As SD.Next writes it in tags."""
    inside, outside = put(folder / "styles" / "fox.safetensors"), put(folder.parent / "fox.safetensors")
    found = catalog(folder)
    for name in (inside.as_posix(), inside.with_suffix("").as_posix()):
        assert found.find(name).path == inside
    for name in (outside.as_posix(), (folder / "styles" / ".." / ".." / "fox").as_posix()):
        with pytest.raises(CatalogError, match=r"is outside the LoRA folders; did you mean fox\?"):
            found.find(name)
    with pytest.raises(CatalogError, match="is outside the LoRA folders; write a name from the list of LoRA"):
        found.find("/etc/passwd")


def test_a_path_suggests_the_file_that_it_names_however_it_is_written(folder: Path) -> None:
    put(folder / "styles" / "zorp.v2.safetensors")
    put(folder / "fox.safetensors")
    found = catalog(folder)
    for path in (
        r"C:\models\loras\zorp.v2",
        r"models\loras\zorp.v2.pt",
        "/models/zorp.v2.ckpt",
        r'"C:\loras\zorp.v2.safetensors"',
        "loras¥zorp.v2",
        "loras\uff3cZORP.V2.safetensors",
        "zorp.v2.bin",
    ):
        with pytest.raises(CatalogError) as caught:
            found.find(path)
        assert list(caught.value.candidates) == ["zorp.v2"], path


def test_a_file_outside_is_unknown_by_any_spelling(folder: Path) -> None:
    outside = put(folder.parent / "secret.safetensors")
    for name in ("secret", str(outside).lstrip("/"), outside.name):
        with pytest.raises(CatalogError, match="not in the LoRA folders"):
            catalog(folder).find(name)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_the_user_put_into_the_folder_are_followed_once(folder: Path, tmp_path: Path) -> None:
    put(tmp_path / "disk" / "far.safetensors")
    (folder / "collection").symlink_to(tmp_path / "disk")
    (folder / "loop").symlink_to(folder)
    (folder / "dead.safetensors").symlink_to(tmp_path / "gone")
    found = catalog(folder)
    assert found.find("collection/far").path == folder / "collection" / "far.safetensors"
    assert found.names.all() == ["far"]


def test_an_unknown_name_suggests_what_is_close(folder: Path) -> None:
    put(folder / "watercolour.safetensors")
    with pytest.raises(CatalogError, match="did you mean watercolour") as caught:
        catalog(folder).find("watercolor")
    assert caught.value.candidates == ("watercolour",)


def test_a_pickle_is_found_so_that_opening_it_says_why_not(folder: Path) -> None:
    (folder / "old.pt").write_bytes(b"PK\x03\x04")
    found = catalog(folder)
    assert found.files == ()
    with pytest.raises(PickleError, match="convert"):
        AdapterFile.open(found.find("old").path)
    safe = put(folder / "old.safetensors")
    found.refresh()
    assert found.find("old").path == safe


def test_refresh_sees_new_and_changed_files(folder: Path) -> None:
    found = catalog(folder)
    assert found.names.all() == []
    path = put(folder / "a.safetensors", value=1)
    with pytest.raises(CatalogError):
        found.find("a")
    found.refresh()
    before = found.hashes.short(found.find("a"))
    put(path, alias="new", value=2)
    os.utime(path, ns=(1, 1))
    found.refresh()
    assert found.hashes.short(found.find("new")) != before
    path.unlink()
    found.refresh()
    assert found.names.all() == []


def test_a_damaged_file_is_listed_without_metadata_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "bad.safetensors").write_bytes(b"\xff" * 20)
    found = catalog(folder)
    with caplog.at_level(logging.WARNING):
        assert found.metadata(found.find("bad")) == {}
    assert "bad.safetensors" in caplog.text


@pytest.mark.parametrize("alias", ["none", "Addams", ""])
def test_aliases_everybody_shares_are_no_alias(folder: Path, alias: str) -> None:
    put(folder / "a.safetensors", alias=alias)
    found = catalog(folder)
    assert found.alias(found.files[0]) == "a"


def test_a_real_file_has_the_hash_other_programs_show(folder: Path, lora_file: Path) -> None:
    shutil.copy(lora_file, folder)
    raw = lora_file.read_bytes()
    found = catalog(folder)
    expected = hashlib.sha256(raw[8 + int.from_bytes(raw[:8], "little") :]).hexdigest()[:12]
    assert found.hashes.short(found.files[0]) == expected


def test_the_hash_of_nothing_that_some_trainers_store_finds_no_file(folder: Path) -> None:
    nothing = hashlib.sha256().hexdigest()
    for name in "ab":
        save_file({"x": torch.tensor([float(ord(name))])}, folder / f"{name}.safetensors", {"sshs_model_hash": nothing})
    found = catalog(folder)
    with pytest.raises(CatalogError, match="is not in the LoRA folders"):
        found.find(nothing[:12])
    assert found.find(found.hashes.short(found.find("a"))).name == "a"


def test_a_name_like_a_hash_reads_no_file_while_somebody_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = put(folder / "a.safetensors", value=1)
    found, hashed = catalog(folder), threading.Event()
    digest = hashlib.sha256(torch.tensor([1.0]).numpy().tobytes()).hexdigest()[:12]
    monkeypatch.setattr("extension.library.hashes.hash_from", _waiting(hash_from, hashed))
    with pytest.raises(CatalogError, match="if it is a hash, try again later: 1 hashes are being computed"):
        found.find(digest)
    with pytest.raises(CatalogError, match="is not in the LoRA folders"):
        found.find("20241105")
    hashed.set()
    found.close()  # which waits
    assert found.find(digest).path == a


HEADERS = [
    b"\xff" * 8,
    b"\xff" * 7 + b"\x7f",
    (1 << 62).to_bytes(8, "little"),
    (200).to_bytes(8, "little"),
    b"abc",
    b"",
]


@pytest.mark.parametrize("start", HEADERS, ids=["all ones", "signed", "sparse", "truncated", "no header", "empty"])
def test_a_damaged_file_keeps_no_other_from_being_found_by_its_hash(
    folder: Path, start: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "bad.safetensors").write_bytes(start + b"x" * 100 if len(start) == 8 else start)
    a = put(folder / "a.safetensors", value=1)
    found = catalog(folder)
    raw = torch.tensor([1.0]).numpy().tobytes()
    for _ in range(3):
        short = found.names.with_hash(hashlib.sha256(raw).hexdigest()[:12], 9)
        assert short is not None
        assert short.path == a
        assert found.names.with_hash("0123456789ab", 9) is None
        whole = found.names.with_sha256(hashlib.sha256(a.read_bytes()).hexdigest(), 9)
        assert whole is not None
        assert whole.path == a
        assert found.names.with_sha256("0123456789ab", 9) is None
    assert [record.getMessage() for record in caplog.records if "no hash can be made of" in record.getMessage()] == [
        f"remora: no hash can be made of {folder / 'bad.safetensors'}: "
        "it is shorter than its header says that the header is"
    ]


def test_a_file_of_which_no_hash_can_be_made_is_said_once_and_tried_again_later(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "a.safetensors", value=1)
    found = catalog(folder)
    digest = hashlib.sha256(torch.tensor([1.0]).numpy().tobytes()).hexdigest()[:12]

    def fail(*_: object) -> str:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("extension.library.hashes.hash_from", fail)
        with pytest.raises(CatalogError, match="try again later: 1 hashes are being computed"):
            found.find(digest)
        found.close()  # which waits
        for _ in range(2):
            with pytest.raises(CatalogError, match="is not in the LoRA folders; 1 LoRA files are known"):
                found.find(digest)
            assert found.names.with_hash(digest, 9) is None
            found.hashes.later(found.files[0])
        found.close()
        assert [record.getMessage() for record in caplog.records] == [
            f"remora: no hash can be made of {folder / 'a.safetensors'}: Input/output error"
        ]
    monkeypatch.setattr("extension.library.hashes._TRIED_AGAIN", 0.0)
    assert found.names.with_hash(digest, 9) == found.files[0]
    assert found.find(digest).name == "a"


def _waiting(function: Callable[..., str], event: threading.Event) -> Callable[..., str]:
    """Return a function that runs in other threads once the event is set."""
    asked = threading.get_ident()

    def wait(*arguments: object) -> str:
        assert threading.get_ident() != asked
        assert event.wait(30)
        return function(*arguments)

    return wait


def test_a_name_is_found_without_a_look_at_every_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        put(folder / f"f{number}.safetensors", alias=f"alias {number}")
    found = catalog(folder)
    assert found.find("alias 7").name == "f7"
    monkeypatch.setattr(Catalog, "every", property(lambda _: pytest.fail("all files were looked at")))
    monkeypatch.setattr(Catalog, "row", lambda *_: pytest.fail("a row was looked at"))
    for name in ("f7", "f7.safetensors", "alias 7"):
        assert found.find(name).name == "f7"
    with pytest.raises(CatalogError, match="50 LoRA files are known"):
        found.find("zzz")


def test_for_one_request_the_folders_are_looked_at_anew_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr("extension.library.scan.walk", lambda *given: looks.append(1) or walk(*given))
    gone = put(folder / "gone.safetensors")
    put(folder / "a.safetensors")
    found = catalog(folder)
    found.refresh()
    gone.unlink()
    came = put(folder / "came.safetensors")
    looks.clear()
    files = Lookup(found)
    assert files.find("a").name == "a"
    assert looks == [], "what is known needs none"
    for name in ("nope", "gone", "nope too", "20241105"):
        with pytest.raises(CatalogError, match="is not in the LoRA folders"):
            files.find(name)
    assert files.find("came").path == came
    assert len(looks) == 1
    later = put(folder / "later.safetensors")
    assert Lookup(found).find("later").path == later
    assert len(looks) == 2, "another request has another look"


def test_names_like_hashes_go_over_no_files_whose_hash_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [f"{number:064x}"[::-1] for number in range(5)]
    for number, digest in enumerate(hashes):
        save_file({"x": torch.ones(1)}, folder / f"{number}.safetensors", {"sshs_model_hash": digest})
    put(folder / "unhashed.safetensors", value=1)
    found = catalog(folder)
    with pytest.raises(CatalogError, match="1 hashes are being computed"):
        found.find("20241105")
    found.close()  # which waits
    by_name = {file.name: file for file in found.files}
    monkeypatch.setattr(Catalog, "every", property(lambda _: pytest.fail("all files were looked at")))
    monkeypatch.setattr(Catalog, "row", lambda *_: pytest.fail("a row was looked at"))
    with pytest.raises(CatalogError, match="6 LoRA files are known"):
        found.find("20241105")
    assert found.names.with_hash(hashes[3], 9) == by_name["3"]
    assert found.names.with_hash("20241105", 9) is None


def test_an_alias_follows_its_file(folder: Path) -> None:
    found = catalog(folder)
    path = put(folder / "a.safetensors", alias="old")
    found.refresh()
    assert found.find("old").path == path
    put(path, alias="new")
    os.utime(path, ns=(1, 1))
    found.refresh()
    assert found.find("new").path == path
    with pytest.raises(CatalogError):
        found.find("old")


def test_an_unknown_name_is_compared_with_few_others_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("watercolour", "other"):
        put(folder / f"{name}.safetensors")
    monkeypatch.setattr("extension.library.names._COMPARED_AT_MOST", 2)
    with pytest.raises(CatalogError, match="2 LoRA files are known") as caught:
        catalog(folder).find("watercolor")
    assert caught.value.candidates == ()


def test_a_file_that_is_removed_while_it_is_asked_for_is_said_to_be_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder / "goes.safetensors")
    known = catalog(folder)
    file = known.find("goes")
    found = known.found(file)
    file.path.unlink()
    monkeypatch.setattr(known.index, "get", lambda _: None)  # a scan has just found that
    with pytest.raises(CatalogError, match="'goes' is gone: its file was removed"):
        known.reread(found)
