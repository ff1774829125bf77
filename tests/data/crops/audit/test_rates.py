"""The table of decoding speeds, and this machine's own."""

import pytest

from rankwise.data.crops.audit.stores import Rates, load_rates, rates_file, save_rates
from rankwise.errors import ConfigError


def test_own_speeds_replace_the_table():
    """What was measured here is used and named; the rest stays."""
    assert load_rates() == Rates()
    path = save_rates({"zstd-1": 2e9})
    save_rates({"gzip": 3e8})
    assert path == rates_file()
    rates = load_rates()
    assert rates.decode["zstd-1"] == 2e9
    assert rates.decode["blosc-lz4"] == Rates().decode["blosc-lz4"]
    assert "gzip, zstd-1" in rates.origin
    assert [item.name for item in path.parent.iterdir()] == ["rates.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"decode": 3}', '{"decode": {"zstd": "quick"}}'])
def test_a_damaged_table_is_said(tmp_path, text):
    """The error names the file and the mend."""
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rates\.json.*delete it"):
        load_rates(path)
    with pytest.raises(ConfigError, match="delete it"):
        save_rates({"zstd-1": 1e9}, path)


def test_levels_and_the_slow_path():
    """Unlisted levels take a neighbour's speed; what only zarr-python decodes is slower than all that we decode."""
    rates = Rates()
    assert rates.decode_bytes_per_s("zstd-9", fast=True) == rates.decode["zstd-3"]
    assert rates.decode_bytes_per_s("zstd-2", fast=True) == rates.decode["zstd-1"]
    assert rates.decode_bytes_per_s("zstd--5", fast=True) == rates.decode["zstd-1"]
    assert rates.decode_bytes_per_s("zstd-0", fast=True) == rates.decode["zstd-3"]  # the level that zstd calls default
    assert rates.decode_bytes_per_s("gzip", fast=False) < min(rates.decode.values())
