"""A TOML file as editors leave it, whatever else is in it."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import read_toml


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toml") / "a.toml"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_byte_order_mark_and_ends_of_lines_change_nothing(file: Path, mark: bytes, end: bytes) -> None:
    lines = ["[run]", 'name = "groß"', 'text = """a', 'b"""', ""]
    file.write_bytes(mark + end.join(line.encode() for line in lines))
    assert read_toml(file, what="it") == {"run": {"name": "groß", "text": "a\nb"}}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a = 1\n# gro\xdf\n", "it is not UTF-8: line 2 has the byte 0xdf; save the file as UTF-8"),
        (b"\xef\xbb\xbf# gro\xdf\n", "it is not UTF-8: line 1 has the byte 0xdf; save the file as UTF-8"),
        ("a = 1\n".encode("utf-16"), "it is not UTF-8: line 1 has the byte 0xff; save the file as UTF-8"),
        (b"a = 1\n[run\n", "it is not valid TOML: .*line 2.*; correct that line"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line_and_what_to_do(file: Path, data: bytes, told: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=told):
        read_toml(file, what="it")


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_table_or_one_message(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    try:
        table = read_toml(file, what="it")
    except ConfigError:
        return
    assert table == tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
