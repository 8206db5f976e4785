"""What is changed in Karpenter's source before it is compiled: nothing is changed by guess."""

import pytest

from aaml.errors import UserError
from aaml.karpenter.changes import changed, changes

OPERATOR = b"""
BindAddress: fmt.Sprintf(":%d", options.FromContext(ctx).MetricsPort),
HealthProbeBindAddress: fmt.Sprintf(":%d", options.FromContext(ctx).HealthProbePort),
"""


def test_its_ports_are_bound_to_this_machine() -> None:
    for speed in (1, 5):
        source = changed("pkg/operator/operator.go", OPERATOR, changes(speed))
        assert source.count(b'"127.0.0.1:%d"') == 2
        assert b'":%d"' not in source


def test_only_a_faster_program_has_other_constants() -> None:
    file, source = "pkg/controllers/disruption/controller.go", b"const pollingPeriod = 10 * time.Second\n"
    assert changed(file, source, changes(1)) == source
    assert changed(file, source, changes(5)) == b"const pollingPeriod = 10 * time.Second / 5\n"
    assert changed("pkg/other.go", source, changes(5)) == source


@pytest.mark.parametrize("source", [b"const pollingPeriod = 12 * time.Second", OPERATOR])
def test_another_source_than_expected_is_one_clear_line(source: bytes) -> None:
    with pytest.raises(
        UserError, match=r"disruption/controller.go: 'const pollingPeriod.*is there 0 times; expected 1"
    ):
        changed("pkg/controllers/disruption/controller.go", source, changes(5))


def test_a_text_that_is_there_twice_is_not_changed_either() -> None:
    twice = b"const commandValidationDelay = 15 * time.Second\n" * 2
    with pytest.raises(UserError, match="is there 2 times; expected 1"):
        changed("pkg/controllers/disruption/consolidation.go", twice, changes(5))
