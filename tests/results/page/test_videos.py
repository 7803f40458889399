import base64
import io
from pathlib import Path

import av
import numpy as np

from hocket.results.page.videos import poster


def film(path: Path, shades: list[int]) -> Path:
    """One grey second for each shade, of odd proportions."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("h264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 50, "yuv420p"
        stream.codec_context.gop_size = 10
        for shade in np.repeat(shades, 10):
            picture = np.full((50, 96, 3), shade, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return path


def test_poster_shows_how_the_video_ends(tmp_path: Path) -> None:
    address = poster(film(tmp_path / "x.mp4", [20, 60, 200]))
    assert address is not None
    head, _, data = address.partition(",")
    assert head == "data:image/jpeg;base64"
    with av.open(io.BytesIO(base64.b64decode(data)), format="mjpeg") as file:
        shown = next(file.decode(video=0)).to_ndarray(format="rgb24")
    assert shown.shape == (166, 320, 3)
    assert abs(int(shown.mean()) - 200) < 15


def test_broken_and_missing_files_have_no_poster(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"\0" * 100)
    assert poster(tmp_path / "broken.mp4") is None
    assert poster(tmp_path / "missing.mp4") is None
