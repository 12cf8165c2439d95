"""The faults that were found, each with the input that showed it."""

from __future__ import annotations

import pytest

from .faults import Trial
from .target import CORPUS, all_targets

DIGITS = b"0" * 12_000


DATABASE = (CORPUS / "databases" / "broken_table").read_bytes()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("target", "data"),
    [
        # each way to part the digits in two was tried: ten seconds
        pytest.param("prompts", b"<lora:a:%s!>" % DIGITS, id="a number of many digits in a prompt"),
        pytest.param("tags", b"1:%s!" % DIGITS, id="a number of many digits in a tag"),
        pytest.param("block_weights", b"1,%s!,1" % DIGITS, id="a number of many digits in a list"),
        pytest.param("block_weights", b"1,X+%s!" % DIGITS, id="an offset of many digits in a list"),
        pytest.param("regions", b"!%s!" % DIGITS, id="an edge of many digits"),
        # a name was looked for at each character of the line
        pytest.param("infotexts", b"a\nSteps: 1, %s!" % DIGITS, id="a long line without a colon"),
        pytest.param("infotexts", b"a\n%sb!" % (b"\t" * 12_000), id="a long line of blanks"),
        # each change of the file took one more mark away
        pytest.param("block_files", "\ufeff\ufeffA:1,0".encode(), id="a file with two marks at its beginning"),
        # another tag of the name could be read, and this one's points were scaled to what is not a number
        pytest.param("prompts", b"<lora:a:1e999@1><lora:a:0>", id="a schedule of infinite numbers"),
        # each mark called the function once more, until Python gave up
        pytest.param("regions", b"!" * 3000 + b"left", id="a region that is inverted thousands of times"),
        # an expression takes this for a blank, and `float` does not
        pytest.param("regions", b"0,0,1,\x1c1", id="an edge behind a separator of files"),
        pytest.param("block_weights", b":::\x1d1", id="a weight of blocks behind a separator of groups"),
        # what SQLite said of it was no text, so the collection could not be opened at all
        pytest.param("databases", DATABASE, id="a database whose table has a name that is no text"),
        # its error named the place of the content in memory
        pytest.param("png_info", b"", id="a picture without content"),
        pytest.param("region_pictures", b"no picture", id="a region that is no picture"),
    ],
)
def test_is_a_fault_no_more(target: str, data: bytes) -> None:
    Trial(all_targets()[target])(data)
