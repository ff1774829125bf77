"""What `--tee` and `--redirects` mean."""

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.show import parse_show


def shown(show, num_ranks=3):
    return {f"{r}{s}" for r in range(num_ranks) for s in ("out", "err") if show.shows(r, s)}


@pytest.mark.parametrize(
    ("tee", "redirects", "wanted"),
    [
        ("auto", "0", {"0out", "0err", "1err", "2err"}),
        ("0", "0", {"0out", "0err", "1err", "2err"}),
        ("all", "0", {"0out", "0err", "1out", "1err", "2out", "2err"}),
        ("main", "0", {"0out", "0err"}),
        ("none", "0", set()),
        ("1", "0", {"0out", "1out", "2out"}),
        ("2:3", "0", {"2out", "2err"}),
        ("0:1, 1:2", "0", {"0out", "1err"}),
        ("3", "1:1,2:3", {"0out", "0err", "1err"}),
        ("auto", "2", {"0out"}),
    ],
)
def test_forms(tee, redirects, wanted):
    """Words, torchrun's single number for all ranks, and its pairs."""
    assert shown(parse_show(tee, redirects)) == wanted


@pytest.mark.parametrize("tee", ["loud", "4", "0:4", "0-3", "", "1:"])
def test_other_words_are_refused(tee):
    """The error lists what is taken."""
    with pytest.raises(ConfigError, match="auto, all, main, none"):
        parse_show(tee)
    with pytest.raises(ConfigError, match="redirects"):
        parse_show("all", tee or "x")


def test_ranks_beyond_the_launch_are_refused():
    """A rank that does not exist would silently show nothing."""
    parse_show("2:3").check(3)
    with pytest.raises(ConfigError, match="ranks 0 to 1"):
        parse_show("2:3").check(2)
