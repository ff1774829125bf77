"""The log: quiet on standard error unless asked, and always there for the program's own handlers."""

import logging

import pytest

import rankwise.data.crops as damacy


@pytest.fixture(autouse=True)
def _as_before():
    logger = logging.getLogger("rankwise.crops")
    level = logger.level
    yield
    damacy.set_log_quiet()
    logger.setLevel(level)


def test_levels():
    """0 lets everything through, 5 nothing but the end."""
    for level, name in enumerate(("Level 1", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")):
        damacy.set_log_level(level)
        assert logging.getLevelName(logging.getLogger("rankwise.crops").level) == name
    for wrong in (6, -1, "info"):
        with pytest.raises(damacy.InvalidArgument, match=r"0 .everything. to 5"):
            damacy.set_log_level(wrong)


def test_standard_error_on_request(capfd):
    """Nothing is written there unless asked, and each line once however often one asks."""
    logger = logging.getLogger("rankwise.crops")
    damacy.set_log_level(2)
    damacy.set_log_quiet(False)
    damacy.set_log_quiet(False)
    logger.info("seen")
    damacy.set_log_quiet()
    logger.info("unseen")
    assert capfd.readouterr().err == "INFO rankwise.crops: seen\n"


def test_the_memory_is_in_the_log(caplog):
    """A pipeline says what it takes, at level info."""
    with caplog.at_level(logging.INFO, "rankwise.crops"):
        damacy.Pipeline(damacy.Config(samples_per_batch=1, sample_shape=(8,), device="cpu")).close()
    assert "batches on the device" in caplog.text


def test_options_without_effect_are_said_once(caplog, monkeypatch):
    """What only a GPU decoder heeds is accepted, and said."""
    from rankwise.data.crops.stream import pipeline

    monkeypatch.setattr(pipeline, "_said", set())
    config = damacy.Config(samples_per_batch=1, sample_shape=(8,), device="cpu", max_chunks_per_wave=9)
    for _ in range(2):
        damacy.Pipeline(config).close()
    assert caplog.text.count("no effect here") == 1
    assert "max_chunks_per_wave" in caplog.text
