"""Any stream of pushes: what comes out is what was pushed, in order, each once, whatever waits for whom."""

import random

import numpy as np
import pytest
import zarr

import rankwise.data.crops as damacy


class Stream:
    """Pushes of random lengths, some with bad samples, some that end in an error; pops in between."""

    def __init__(self, uri, seed):
        self.uri, self.random = uri, random.Random(seed)
        self.size, self.drop_last = self.random.choice([1, 2, 3, 5]), self.random.random() < 0.4
        lengths = [self.random.randrange(12) for _ in range(self.random.randrange(1, 6))]
        self.pushes = [self.random.choices("sx", (12, 1), k=length) for length in lengths]
        for push in self.pushes:
            push.extend(["!"] * (self.random.random() < 0.2))
        self.sent, self.got, self.num_errors, self.num_bad = [], [], 0, 0

    def config(self):
        return damacy.Config(
            samples_per_batch=self.size,
            sample_shape=(4,),
            dtype="i32",
            device="numpy",
            drop_last=self.drop_last,
            host_buffer_waves=self.random.choice([2, 3, 5]),
            lookahead_samples=self.random.choice([None, self.size, self.size + 1]),
            pop_timeout_s=self.random.choice([0.02, 60.0]),
            n_io_threads=1,
        )

    def source(self, push):
        for what in push:
            if what == "!":
                raise KeyError("my own trouble")
            start = 5000 if what == "x" else len(self.sent)
            if what == "s":
                self.sent.append(start)
            yield damacy.Sample(self.uri, ((start, start + 4),), meta=start)

    def pop(self, pipeline, limit):
        """Pop so many batches, or all that there are."""
        while limit:
            try:
                batch = pipeline.pop()
            except damacy.TryAgain:
                return
            except damacy.PoolStarved:
                continue
            except KeyError:
                self.num_errors += 1
            except damacy.InvalidSample as error:
                self.num_bad += 1 + len(error.others)
            else:
                limit -= 1
                self.got += batch.meta
                np.testing.assert_array_equal(batch["image"][:, 0], batch.meta)


@pytest.mark.parametrize("tens", range(8))
def test_everything_comes_once_and_in_order(tmp_path, tens):
    """Samples, bad ones and errors of the source are all met; only drop_last leaves some, fewer than a batch."""
    zarr.create_array(str(tmp_path / "a"), data=np.arange(1024, dtype="i4"), chunks=(64,))
    for seed in range(10 * tens, 10 * tens + 10):
        stream = Stream(str(tmp_path / "a"), seed)
        with damacy.Pipeline(stream.config()) as p:
            for push in stream.pushes:
                p.push(stream.source(push))
                stream.pop(p, stream.random.choice([0, 0, 1, 3]))
            stream.pop(p, -1)
            assert not p.pending
        kinds = [what for push in stream.pushes for what in push]
        assert stream.num_errors == kinds.count("!")
        num_left = len(kinds) - kinds.count("!") - len(stream.got) - stream.num_bad
        assert num_left == ((len(kinds) - kinds.count("!")) % stream.size if stream.drop_last else 0)
        assert stream.got == stream.sent[: len(stream.got)]


def test_an_error_takes_no_room_from_samples(tmp_path):
    """With the least lookahead an error in the middle of a batch does not keep the samples out that complete it."""
    zarr.create_array(str(tmp_path / "a"), data=np.arange(64, dtype="i4"), chunks=(64,))

    def broken():
        yield damacy.Sample(str(tmp_path / "a"), ((0, 4),))
        raise KeyError("my own trouble")

    config = damacy.Config(samples_per_batch=2, sample_shape=(4,), device="numpy", lookahead_samples=2)
    with damacy.Pipeline(config) as p:
        p.push(broken())
        p.push(damacy.Sample(str(tmp_path / "a"), ((start, start + 4),)) for start in range(1, 4))
        with pytest.raises(KeyError):
            p.pop()
        assert [batch["image"][:, 0].tolist() for batch in p] == [[0, 1], [2, 3]]
