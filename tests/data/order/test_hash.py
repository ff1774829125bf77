import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.order.permutation import WORD, derive, mix_words


@given(st.lists(st.integers(-(2**200), 2**200), max_size=4))
def test_keys_are_words(words):
    """Integers of any size and sign give a 64-bit key, the same each time."""
    assert 0 <= derive(*words) <= WORD
    assert derive(*words) == derive(*words)


def test_different_words_give_different_keys():
    """Order, sign, number and size of the words all count: no two of these share a key."""
    words = [
        (),
        (0,),
        (0, 0),
        (1,),
        (-1,),
        (2**64,),
        (0, 1),
        (1, 0),
        (2**64 - 1,),
        (2**63,),
        (-(2**63),),
        (1, 2),
        (2, 1),
    ]
    words += [(seed, epoch) for seed in range(3, 40) for epoch in range(3, 40)]
    assert len({derive(*each) for each in words}) == len(words)


def test_words_are_spread():
    """One flipped bit of the input flips about half of the output bits."""
    word = np.array([0x0123456789ABCDEF], dtype=np.uint64)
    flips = [int(mix_words(word ^ np.uint64(1 << bit))[0] ^ mix_words(word)[0]).bit_count() for bit in range(64)]
    assert 28 < np.mean(flips) < 36
    assert min(flips) > 14
