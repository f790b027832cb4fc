"""Files are complete or absent, and damaged ones are refused."""

import numpy as np
import pytest
import torch

from flashgatr.io import files
from flashgatr.io.files import FileError

HEADER = {"format": 1, "name": "a"}
KINDS = {"name": str}


def packed(**arrays):
    return files.pack_arrays("test", HEADER, arrays or {"x": np.arange(6.0).reshape(2, 3)})


def _write_half(path):
    path.write_bytes(b"half of the ne")
    raise OSError("the disk is full")


def test_a_file_is_replaced_in_one_go(tmp_path):
    path = tmp_path / "a.txt"
    files.write(path, b"old")
    with pytest.raises(OSError, match="disk"), files.replacing(path) as aside:
        _write_half(aside)
    assert path.read_bytes() == b"old"
    with files.replacing(path) as aside:
        aside.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    assert files.read(tmp_path / "a", limit=100) == bytes(100)
    with pytest.raises(FileError, match="it has 100 bytes; the limit is 99"):
        files.read(tmp_path / "a", limit=99)


def test_tensors_return_from_their_bytes():
    state = {"x": torch.randn(2, 3), "n": torch.arange(3)}
    again = files.from_safetensors(files.to_safetensors(state))
    assert all(torch.equal(again[name], x) for name, x in state.items())
    with pytest.raises(FileError):
        files.from_safetensors(b"junk")


def test_arrays_return_with_their_header():
    content, digest = packed()
    header, arrays = files.unpack_arrays(content, "test", 1, KINDS)
    assert header == {**HEADER, "sha256": digest}
    files.require_digest(header, arrays)
    assert arrays["x"].dtype == "F64"
    assert arrays["x"].shape == [2, 3]
    np.testing.assert_array_equal(np.frombuffer(arrays["x"].data), np.arange(6.0))


def test_another_byte_or_another_header_changes_the_hash():
    header, arrays = files.unpack_arrays(packed()[0], "test", 1, KINDS)
    data = bytearray(arrays["x"].data)
    data[3] ^= 1
    for changed in (
        (header, {"x": arrays["x"]._replace(data=bytes(data))}),
        (header, {"x": arrays["x"]._replace(shape=[3, 2])}),
        (header, {"y": arrays["x"]}),
        ({**header, "name": "b"}, arrays),
    ):
        with pytest.raises(FileError, match="its SHA-256 is"):
            files.require_digest(*changed)


@pytest.mark.parametrize(
    ("key", "version", "kinds", "text"),
    [
        ("test", 2, {}, "its format is 1, this version reads 2"),
        ("test", 1, {"name": int}, "it does not say its name"),
        ("test", 1, {"seed": int}, "it does not say its seed"),
    ],
)
def test_headers_of_another_kind_are_refused(key, version, kinds, text):
    with pytest.raises(FileError, match=text):
        files.unpack_arrays(packed()[0], key, version, kinds)


def test_a_file_without_our_header_has_no_hash_to_trust():
    header, arrays = files.unpack_arrays(packed()[0], "other", 1, {})
    assert header == {}
    with pytest.raises(FileError, match="it does not say how it was made"):
        files.require_digest(header, arrays)
