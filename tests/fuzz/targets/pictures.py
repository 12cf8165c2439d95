"""Pictures: with parameters in them, beside files, and sent by users."""

from __future__ import annotations

import io

from hypothesis import strategies as st
from PIL import Image

from extension.kept.region_files import as_png, from_text, read_picture
from extension.library import CatalogFile, Found, beside
from extension.library.pictures import PictureError, Thumbnails, opened_picture, set_picture
from extension.standalone.pnginfo import encode_png, read_infotext
from extension.text.infotext import parse_infotext
from extension.text.regions import RegionTextError

from ..changes import changed_bytes, changed_png
from ..target import demand, folder, target, text_of


@st.composite
def pictures(draw: st.DrawFn) -> bytes:
    """Draw a small picture file."""
    mode = draw(st.sampled_from(["RGB", "RGBA", "L", "P", "1", "LA", "I;16", "CMYK"]))
    size = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    picture = Image.new(mode, size, 0)
    text = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    if mode not in ("CMYK", "I;16", "LA") and draw(st.booleans()):
        return encode_png(picture, text)
    stream = io.BytesIO()
    form = {"I;16": "PNG", "LA": "PNG", "CMYK": "JPEG"}.get(mode) or draw(
        st.sampled_from(["PNG", "GIF", "BMP", "TIFF", "WEBP"])
    )
    picture.convert("RGB" if form == "WEBP" else mode).save(stream, form)
    made = stream.getvalue()
    return made if draw(st.integers(0, 4)) else made[: draw(st.integers(0, len(made)))]


@target(pictures(), changed_png, (PictureError,))
def png_info(data: bytes) -> object:
    """Read the parameters of a picture that is dropped into the web UI."""
    picture = opened_picture(data, 16)
    try:
        with Image.open(io.BytesIO(data)) as opened:
            text = read_infotext(opened)
    except (OSError, ValueError, SyntaxError) as error:  # those that Pillow raises at once, before anything of ours
        return str(type(error))
    info = parse_infotext(text)
    return [picture.size, info.prompt, dict(info.settings)]


@target(pictures(), changed_png, (PictureError,))
def uploaded_pictures(data: bytes) -> object:
    """Keep a picture beside a file and show it small."""
    where = folder("uploaded")
    path = where / "fuzzed.safetensors"
    path.write_bytes(b"")
    file = CatalogFile(path, "fuzzed", 0, 0)
    set_picture(file, beside(file), data)
    shown = Thumbnails(None).of(beside(file), False)
    demand(shown is not None, "a picture that was taken cannot be shown")
    return len(shown or b"") > 0


@target(pictures(), changed_png)
def sidecar_pictures(data: bytes) -> object:
    """Show a picture beside a file, whatever is in it."""
    where = folder("sidecar")
    path, picture = where / "fuzzed.safetensors", where / "fuzzed.png"
    picture.write_bytes(data)
    shown = Thumbnails(None).of(Found(CatalogFile(path, "fuzzed", 0, 0), (), picture, "1"), False)
    return shown is None


@target(pictures(), changed_png, (RegionTextError,))
def region_pictures(data: bytes) -> object:
    """Read a picture of a region."""
    region = read_picture(data)
    demand(read_picture(as_png(region)) == region, "a region is read back otherwise")
    return [region.width, region.height]


@target(st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")), changed_bytes, (RegionTextError,))
def region_texts(data: bytes) -> object:
    """Read a picture of a region as base64."""
    return len(from_text(text_of(data)))
