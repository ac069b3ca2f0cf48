"""The flag without which law 7 fails on processors with AVX-512."""

import pytest

from headrace.pipeline.xla_flags import same_bits_in_every_row


@pytest.mark.parametrize(
    ("flags", "machine", "jax_version", "expected"),
    [
        ("", "x86_64", "0.10.2", "--xla_cpu_max_isa=AVX2"),
        ("--a", "AMD64", "0.12.0.1", "--a --xla_cpu_max_isa=AVX2"),
        ("--xla_cpu_max_isa=AVX512", "x86_64", "0.10.2", "--xla_cpu_max_isa=AVX512"),
        ("--a", "arm64", "0.10.2", "--a"),
        ("", "x86_64", "0.13.0", ""),
        ("", "x86_64", "1.0", ""),
    ],
)
def test_it_is_set_where_it_is_known_and_nobody_has_chosen(flags, machine, jax_version, expected):
    found = same_bits_in_every_row(flags, machine=machine, jax_version=jax_version)
    assert found == expected
