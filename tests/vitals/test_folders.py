"""Where vitals are kept."""

from rankwise.vitals import make_folder


def test_folders_are_new_and_private():
    """Each call makes an empty folder that others cannot enter."""
    first, second = make_folder(), make_folder()
    try:
        assert first != second
        assert first.stat().st_mode & 0o777 == 0o700
        assert not list(first.iterdir())
    finally:
        first.rmdir()
        second.rmdir()
