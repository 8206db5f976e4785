"""YAML that Kubernetes reads back as it was."""

import pytest
import yaml

from aaml.yaml_text import yaml_stream, yaml_text


@pytest.mark.parametrize(
    "text",
    ["y", "N", "yes", "off", "true", "null", "~", "12e4", "1.5e3", "1E5", ".5", "-7", "0o17", "0x1f", "1_000", "1:30"],
)
def test_text_that_a_reader_would_take_for_something_else_is_quoted(text):
    for plain in ({"label": text}, [text]):
        assert f"'{text}'" in yaml_text(plain)
        assert yaml.safe_load(yaml_text(plain)) == plain


def test_numbers_truth_and_names_are_written_plainly():
    plain = {
        "name": "m5.large",
        "replicas": 3,
        "share": 0.5,
        "on": True,
        "none": None,
        "zone": "eu-1a",
        "ip": "10.0.0.1",
    }
    assert "'" not in yaml_text(plain).replace("'on'", "")
    assert list(yaml.safe_load(yaml_text(plain)).items()) == list(plain.items())
    assert list(yaml.safe_load_all(yaml_stream([plain, plain]))) == [plain, plain]
