"""What a message says of a file: the place, the value and what is taken."""

import json

import msgspec
import pytest
import yaml

from aaml.errors import UserError
from aaml.evaluation.evaluate import parse_seeds
from aaml.schema import FastLoader, convert, of_json, of_yaml


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    name: str = ""


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Inner] = []
    by_name: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"parts": [{"count": "x"}]}, "f.yaml: parts[0].count: Expected `int`, got `str` ('x')"),
        ({"parts": [{"count": 1, "nam": "a"}]},
         "f.yaml: parts[0]: unknown field `nam`; did you mean name? Expected one of count, name"),
        ({"by_name": {"a": {"conut": 1}}},
         "f.yaml: by_name: unknown field `conut`; did you mean count? Expected one of count, name"),
        ({"parts": [{}]}, "f.yaml: parts[0]: missing required field `count`"),
        ([], "f.yaml: Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_message_names_place_value_and_what_is_taken(content, said):
    with pytest.raises(UserError) as error:
        convert(content, Outer, "f.yaml")
    assert str(error.value) == said


def test_a_field_that_is_null_is_not_given_and_an_unknown_one_is_told():
    assert convert({"parts": [{"count": 1, "name": None}], "by_name": None}, Outer, "f") == Outer([Inner(1)])
    with pytest.raises(UserError, match=r"f: parts\[0\]: unknown field `nam`"):
        convert({"parts": [{"count": 1, "nam": None}]}, Outer, "f")
    with pytest.raises(UserError, match="missing required field `count`"):
        convert({"parts": [{"count": None}]}, Outer, "f")


def test_a_key_stands_once():
    for read, text in ((of_yaml, b"a: 1\na: 2"), (of_json, b'{"a": 1, "a": 2}')):
        with pytest.raises(UserError, match="key 'a' stands twice"):
            read(text, "f")


@pytest.mark.parametrize(
    "text", ["1..9999999999", "0..1000000", "1..9,100..99999999999999999999999999", "5..4", "1..", "", "1,1"]
)
def test_seeds_that_nobody_plays_are_refused_before_a_list_is_made(text):
    with pytest.raises(UserError, match="seeds: "):
        parse_seeds(text)


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("42..44, 7") == (42, 43, 44, 7)
    assert len(parse_seeds("1..1000000")) == 1_000_000


def test_a_merge_key_stands_for_what_it_names_and_what_is_written_beside_it_counts_more() -> None:
    text = b"a: &a {x: 1, w: 1}\nb: &b {w: 2, z: 2}\none: {<<: *a, w: 3}\nboth: {<<: [*a, *b]}\n"
    nested = b"a: {<<: &b {<<: &c {x: 1}, x: 2}, w: 3}\nb: *b\nc: *c\n"
    (found,) = of_yaml(text, "file")
    assert (found["one"], found["both"]) == ({"x": 1, "w": 3}, {"x": 1, "w": 1, "z": 2})
    assert of_yaml(nested, "file") == [{"a": {"x": 2, "w": 3}, "b": {"x": 2}, "c": {"x": 1}}]
    assert of_yaml(b"'<<': 1\n", "file") == [{"<<": 1}], "a text is a key as any other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"<<: 1\n", "<< stands for a mapping"), (b"<<: [1]\n", "<< stands for a mapping"),
        (b"a: &a {x: 1}\nb: {<<: *a, <<: *a}\n", "key '<<' stands twice"),
        (b"a: &a {x: 1}\nb: {<<: *a, w: 1, w: 2}\n", "key 'w' stands twice"),
        (b"a: &a {<<: *a}\n", "recursive"),
    ],
)  # fmt: skip
def test_a_merge_key_of_nothing_is_told_in_a_line(text: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        of_yaml(text, "file")


def test_merge_keys_of_merge_keys_take_no_time() -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 100))]
    assert of_yaml("\n".join(lines).encode(), "file")[0]["a99"] == {"x": 1}


# What sigs.k8s.io/yaml 1.6 makes of plain text, as JSON.
READ_BY_KUBERNETES = """
y true | Y true | n false | yes true | No false | oN "oN" | on true | OFF false | TRUE true | tRue "tRue"
~ null | Null null | nUll "nUll" | 1 1 | -1 -1 | +1 1 | 01 1 | 017 15 | 08 8 | 0o17 15 | 0O17 15 | 0b11 3 | -0b11 -3
0B11 3 | 0x1F 31 | -0X1F -31 | 1e3 1000 | 12e4 120000 | 1e+5 100000 | 1.e5 100000 | .5 0.5 | 5. 5 | -.5 -0.5
1_000 1000 | _1 "_1" | 1_0.5 10.5 | 1:30 "1:30" | 190:20:30 "190:20:30" | 1:30.5 "1:30.5" | 2024-01-01 "2024-01-01"
2024-01-01T00:00:00Z "2024-01-01T00:00:00Z" | = "=" | 0x "0x" | 0b2 "0b2" | 1e "1e" | e1 "e1" | 1.2.3 "1.2.3"
._ "._" | 0x_ "0x_" | 0b_ "0b_" | 0o_ "0o_" | 1e_ "1e_" | 1e-_ "1e-_"
+ "+" | . "." | inf "inf" | 1e400 "1e400" | 1e-1 0.1 | -0 0 | 1.0 1
"""


@pytest.mark.parametrize("case", READ_BY_KUBERNETES.strip().replace("\n", " | ").split(" | "))
def test_plain_text_in_yaml_is_what_kubernetes_reads(case):
    text, value = case.split()
    for read in (lambda content: of_yaml(content, "x")[0], lambda content: yaml.load(content, FastLoader)):
        assert json.dumps(read(f"a: {text}\n".encode())["a"]) == value


class Labelled(msgspec.Struct, forbid_unknown_fields=True):
    labels: dict[str, str] = {}


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{a: ~}", {"a": ""}),
        ("{y: b, 1: c}", {"true": "b", "1": "c"}),
        ("~", {}),
    ],
)
def test_names_of_labels_are_text_and_a_value_that_is_null_is_empty_as_on_the_api_server(text, labels):
    assert convert(of_yaml(f"labels: {text}".encode(), "file")[0], Labelled, "file").labels == labels


def test_a_key_that_stands_twice_as_text_is_told():
    with pytest.raises(UserError, match="key '1' stands twice"):
        of_yaml(b"{1: a, '1': b}", "file")
